// Memory of devices and pinned memory: mapped memory of the host, and a table of the blocks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "streams.hpp"

namespace simdev {

struct Block {
  uintptr_t begin;
  size_t size;
  int device;
  cudaMemoryType type;
  size_t mapped;  // 0: registered memory, which its owner frees
};

std::optional<Block> block_at(const void* address);
cudaError_t allocate(void** address, size_t size, cudaMemoryType type);
cudaError_t register_host(void* address, size_t size);
cudaError_t release(void* address);
size_t free_memory(int device);

// Like cudaMemcpyAsync, this reads or writes memory that CUDA does not know before it returns.
void copy(void* to, const void* from, size_t size, Stream& stream);

}  // namespace simdev
