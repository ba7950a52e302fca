// libcuda.so.1: the driver's functions that torch asks for by name and that jobs of tests need. It keeps no state of its own.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "../device.hpp"
#include "devices.hpp"
#include "memory.hpp"

using namespace simdev;

namespace {

CUcontext context_of(int device) {
  static char contexts[MOST_DEVICES];
  return reinterpret_cast<CUcontext>(&contexts[device]);
}

}  // namespace

SIMDEV_API CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
SIMDEV_API CUresult cuDriverGetVersion(int* version) {
  *version = cuda_version();
  return CUDA_SUCCESS;
}
SIMDEV_API CUresult cuDeviceGetCount(int* count) {
  *count = device_count();
  return CUDA_SUCCESS;
}
SIMDEV_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
SIMDEV_API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device)) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = properties.uuid;
  return CUDA_SUCCESS;
}
SIMDEV_API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return static_cast<CUresult>(cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device));
}
SIMDEV_API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
SIMDEV_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = context_of(device);
  return CUDA_SUCCESS;
}
SIMDEV_API CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = context_of(current_device());
  return CUDA_SUCCESS;
}
SIMDEV_API CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
SIMDEV_API CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}
SIMDEV_API CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = cudaGetErrorName(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}
SIMDEV_API CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  const auto block = block_at(reinterpret_cast<void*>(address));
  if (!block) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<CUmemorytype*>(value) = block->type == cudaMemoryTypeHost ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *static_cast<CUdeviceptr*>(value) = address; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *static_cast<unsigned long long*>(value) = block->begin; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(value) = block->device; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(value) = block->begin; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<size_t*>(value) = block->size; return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}
SIMDEV_API CUresult cuMemGetAddressRange(CUdeviceptr* begin, size_t* size, CUdeviceptr address) {
  const auto block = block_at(reinterpret_cast<void*>(address));
  if (!block) return CUDA_ERROR_INVALID_VALUE;
  if (begin) *begin = block->begin;
  if (size) *size = block->size;
  return CUDA_SUCCESS;
}
