// CUDA's runtime API: kernels, and what nvcc's generated code calls when a library is loaded. A cudaKernel_t is the address of the
// host's function.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "../device.hpp"
#include "devices.hpp"
#include "kernels.hpp"

using namespace simdev;

SIMDEV_API void** __cudaRegisterFatBinary(void*) {
  static void* handle[1];
  return handle;
}
SIMDEV_API void __cudaRegisterFatBinaryEnd(void**) {}
SIMDEV_API void __cudaUnregisterFatBinary(void**) {}
SIMDEV_API void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                                       int*) {
  register_kernel(host, name);
}
SIMDEV_API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
SIMDEV_API char __cudaInitModule(void**) { return 1; }

namespace {

struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
thread_local std::vector<Configuration> configurations;  // of kernel<<<...>>> calls that have begun

}  // namespace

SIMDEV_API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
SIMDEV_API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const Configuration newest = configurations.back();
  configurations.pop_back();
  *grid = newest.grid, *block = newest.block, *shared = newest.shared;
  *static_cast<void**>(stream) = newest.stream;
  return cudaSuccess;
}
SIMDEV_API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

// CUDA 13 launches with the first function, CUDA 12 with the second.
SIMDEV_API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  return launch(kernel, arguments, stream);
}
SIMDEV_API cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  return launch(function, arguments, stream);
}
SIMDEV_API cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void** arguments, size_t,
                                                   cudaStream_t stream) {
  return launch(function, arguments, stream);
}
SIMDEV_API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return launch(function, arguments, config->stream);
}

SIMDEV_API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024, attributes->numRegs = 32, attributes->maxDynamicSharedSizeBytes = 232448;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
SIMDEV_API cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }
SIMDEV_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}

static char no_library;
SIMDEV_API cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void*, cudaJitOption*, void**, unsigned,
                                           cudaLibraryOption*, void**, unsigned) {
  *library = reinterpret_cast<cudaLibrary_t>(&no_library);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaLibraryUnload(cudaLibrary_t) { return cudaSuccess; }
SIMDEV_API cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, const char*) {
  *kernel = reinterpret_cast<cudaKernel_t>(&no_library);
  return cudaSuccess;
}

// ---------------------------------------------------------------- the driver's functions by name

static int not_supported() { return cudaErrorNotSupported; }

// torch also asks for functions that it rarely calls, and fails if one is missing.
SIMDEV_API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                        cudaDriverEntryPointQueryResult* status) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  *function = driver ? dlsym(driver, name) : nullptr;
  if (driver && !*function) *function = dlsym(driver, (std::string(name) + "_v2").c_str());  // as cuda.h names the newest
  if (is_traced()) fprintf(stderr, "simulated device: the driver's %s: %s\n", name, *function ? "simulated" : "fails");
  if (!*function) *function = reinterpret_cast<void*>(&not_supported);
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
#if CUDART_VERSION < 13000
SIMDEV_API cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                               cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, status);
}
#endif
