// CUDA's runtime API: devices, errors, versions.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../device.hpp"
#include "devices.hpp"
#include "streams.hpp"

namespace simdev {
namespace {

thread_local int device_of_thread = 0;
thread_local cudaError_t error_of_thread = cudaSuccess;

long setting(const char* name, long otherwise) {
  const char* value = getenv(name);
  return value && *value ? atol(value) : otherwise;
}

}  // namespace

int device_count() {
  static const int count = static_cast<int>(setting("SIMDEV_DEVICES", 8));
  return count < 0 ? 0 : count > MOST_DEVICES ? MOST_DEVICES : count;
}
size_t device_memory() {
  static const size_t size = static_cast<size_t>(setting("SIMDEV_MEMORY_MB", 80 * 1024)) << 20;
  return size;
}
int current_device() { return device_of_thread; }
void set_current_device(int device) { device_of_thread = device; }
int cuda_version() { return CUDART_VERSION; }
cudaError_t fail(cudaError_t error) {
  if (error != cudaSuccess) error_of_thread = error;
  return error;
}
bool is_traced() {
  static const bool traced = getenv("SIMDEV_TRACE") != nullptr;
  return traced;
}

}  // namespace simdev

using namespace simdev;

SIMDEV_API cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}
SIMDEV_API cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
  set_current_device(device);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaDeviceSynchronize() {
  finish_device(current_device());
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = cuda_version();
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }

// An H100's numbers, so that torch takes the same paths as on an H100.
SIMDEV_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
  cudaDeviceProp& p = *properties;
  memset(&p, 0, sizeof p);
  snprintf(p.name, sizeof p.name, "Simulated GPU");
  memcpy(p.uuid.bytes, "simulated-gpu-00", sizeof p.uuid.bytes);
  p.uuid.bytes[15] = static_cast<char>('0' + device);
  p.major = 9, p.minor = 0, p.multiProcessorCount = 132, p.warpSize = 32;
  p.totalGlobalMem = device_memory(), p.totalConstMem = 65536, p.l2CacheSize = 50 << 20, p.memoryBusWidth = 5120;
  p.sharedMemPerBlock = 49152, p.sharedMemPerBlockOptin = 232448, p.sharedMemPerMultiprocessor = 233472;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.maxThreadsPerBlock = 1024, p.maxThreadsPerMultiProcessor = 2048, p.maxBlocksPerMultiProcessor = 32;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024, p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 2147483647, p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.textureAlignment = 512, p.memPitch = 2147483647;
  p.unifiedAddressing = p.managedMemory = p.concurrentKernels = p.streamPrioritiesSupported = 1;
  p.asyncEngineCount = 3, p.pciBusID = device + 1;
  return cudaSuccess;
}

SIMDEV_API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 233472; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    case cudaDevAttrClockRate: *value = 1980000; break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrPciBusId: *value = device + 1; break;
    default: *value = 0;
  }
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  snprintf(text, size, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

SIMDEV_API cudaError_t cudaGetLastError() {
  const cudaError_t error = error_of_thread;
  error_of_thread = cudaSuccess;
  return error;
}
SIMDEV_API cudaError_t cudaPeekAtLastError() { return error_of_thread; }
SIMDEV_API const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    default: return "cudaErrorOfTheSimulatedDevice";
  }
}
SIMDEV_API const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorNotSupported: return "operation not supported by the simulated device";
    default: break;
  }
  static thread_local char text[64];
  snprintf(text, sizeof text, "error %d of the simulated device", static_cast<int>(error));
  return text;
}
SIMDEV_API cudaError_t cudaProfilerStart() { return cudaSuccess; }
SIMDEV_API cudaError_t cudaProfilerStop() { return cudaSuccess; }
