// The devices of this process, and CUDA's state of each thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace simdev {

constexpr int MOST_DEVICES = 64;

int device_count();       // SIMDEV_DEVICES, default 8
size_t device_memory();   // bytes: SIMDEV_MEMORY_MB, default 80 GiB
int current_device();     // of this thread
void set_current_device(int device);
int cuda_version();       // of the headers, which match torch's CUDA

// Keeps the error for cudaGetLastError, and returns it.
cudaError_t fail(cudaError_t error);

}  // namespace simdev
