// Kernels. They compute nothing, except for two that jobs of tests need.
#pragma once

#include <cuda_runtime_api.h>

namespace simdev {

// A kernel is known by the address of its host function, and by its mangled name.
void register_kernel(const void* function, const char* name);

// FillFunctor (torch.zeros, ones, full) fills, spin_kernel (torch.cuda._sleep) takes its time; others do nothing.
cudaError_t launch(const void* function, void** arguments, cudaStream_t stream);

}  // namespace simdev
