// CUDA's runtime API: memory.
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <mutex>

#include "../device.hpp"
#include "devices.hpp"
#include "memory.hpp"
#include "streams.hpp"

using namespace simdev;

SIMDEV_API cudaError_t cudaMalloc(void** address, size_t size) { return allocate(address, size, cudaMemoryTypeDevice); }
SIMDEV_API cudaError_t cudaFree(void* address) {
  if (auto block = address ? block_at(address) : std::nullopt) finish_device(block->device);  // as the real one does
  return release(address);
}
SIMDEV_API cudaError_t cudaMallocAsync(void** address, size_t size, cudaStream_t) { return cudaMalloc(address, size); }
SIMDEV_API cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  stream_of(stream).add([address] { release(address); }, Pace::prompt);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) {
  return allocate(address, size, cudaMemoryTypeHost);
}
SIMDEV_API cudaError_t cudaFreeHost(void* address) { return release(address); }
SIMDEV_API cudaError_t cudaHostRegister(void* address, size_t size, unsigned) { return register_host(address, size); }
SIMDEV_API cudaError_t cudaHostUnregister(void* address) { return release(address); }
SIMDEV_API cudaError_t cudaMemGetInfo(size_t* unused, size_t* all) {
  *all = device_memory();
  *unused = free_memory(current_device());
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  memset(attributes, 0, sizeof *attributes);
  void* pointer = const_cast<void*>(address);
  if (auto block = block_at(address)) {
    attributes->type = block->type;
    attributes->device = block->device;
    attributes->devicePointer = pointer;
    attributes->hostPointer = block->type == cudaMemoryTypeHost ? pointer : nullptr;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    attributes->hostPointer = pointer;
  }
  return cudaSuccess;
}

// ---------------------------------------------------------------- copies

SIMDEV_API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
  copy(to, from, size, stream_of(stream));
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t stream) {
  copy(to, from, size, stream_of(stream));
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  Stream& stream = stream_of(nullptr);
  copy(to, from, size, stream);
  stream.finish();
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                         size_t height, cudaMemcpyKind, cudaStream_t stream) {
  for (size_t row = 0; row < height; row++)
    copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width, stream_of(stream));
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaMemsetAsync(void* address, int value, size_t size, cudaStream_t stream) {
  stream_of(stream).add([=] { memset(address, value, size); }, Pace::prompt);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaMemset(void* address, int value, size_t size) {
  return cudaMemsetAsync(address, value, size, nullptr);
}

// ---------------------------------------------------------------- variables of device code, memory pools

// Only kernels read variables of device code, and they do nothing.
SIMDEV_API cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
SIMDEV_API cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  constexpr size_t MOST = 65536;  // bytes: the size is not known
  static std::mutex mutex;
  static std::map<const void*, void*> addresses;
  std::lock_guard lock(mutex);
  void*& found = addresses[symbol];
  if (!found) allocate(&found, MOST, cudaMemoryTypeDevice);
  *address = found;
  return cudaSuccess;
}

SIMDEV_API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  static char object;
  *pool = reinterpret_cast<cudaMemPool_t>(&object);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  memset(value, 0, sizeof(uint64_t));
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
SIMDEV_API cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
SIMDEV_API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
SIMDEV_API cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType, void* value) {
  memset(value, 0, sizeof(uint64_t));
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaDeviceSetGraphMemAttribute(int, cudaGraphMemAttributeType, void*) { return cudaSuccess; }
