#include "memory.hpp"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <shared_mutex>
#include <vector>

#include "../faults.hpp"
#include "devices.hpp"

namespace simdev {
namespace {

struct Blocks {
  std::shared_mutex mutex;
  std::map<uintptr_t, Block> by_begin;
  size_t used[MOST_DEVICES] = {};
};
Blocks& blocks = *new Blocks;  // streams' threads use it until the process is gone

}  // namespace

std::optional<Block> block_at(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  std::shared_lock lock(blocks.mutex);
  auto after = blocks.by_begin.upper_bound(at);
  if (after == blocks.by_begin.begin()) return {};
  const Block& block = std::prev(after)->second;
  if (at >= block.begin + block.size) return {};
  return block;
}

cudaError_t allocate(void** address, size_t size, cudaMemoryType type) {
  *address = nullptr;
  if (!size) return cudaSuccess;
  constexpr size_t PAGE = 4096;
  const size_t mapped = (size + PAGE - 1) & ~(PAGE - 1);
  const int device = current_device();
  std::unique_lock lock(blocks.mutex);
  if (type == cudaMemoryTypeDevice && blocks.used[device] + mapped > device_memory())
    return fail(cudaErrorMemoryAllocation);
  // Pages that are not written take no memory, so that a caching allocator's large blocks cost nothing.
  void* found = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return fail(cudaErrorMemoryAllocation);
  const auto begin = reinterpret_cast<uintptr_t>(found);
  blocks.by_begin[begin] = {begin, size, device, type, mapped};
  if (type == cudaMemoryTypeDevice) blocks.used[device] += mapped;
  *address = found;
  return cudaSuccess;
}

cudaError_t register_host(void* address, size_t size) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  std::unique_lock lock(blocks.mutex);
  blocks.by_begin[begin] = {begin, size, current_device(), cudaMemoryTypeHost, 0};
  return cudaSuccess;
}

cudaError_t release(void* address) {
  if (!address) return cudaSuccess;
  std::unique_lock lock(blocks.mutex);
  auto found = blocks.by_begin.find(reinterpret_cast<uintptr_t>(address));
  if (found == blocks.by_begin.end()) return fail(cudaErrorInvalidValue);
  const Block block = found->second;
  blocks.by_begin.erase(found);
  if (block.type == cudaMemoryTypeDevice) blocks.used[block.device] -= block.mapped;
  if (block.mapped) munmap(address, block.mapped);
  return cudaSuccess;
}

size_t free_memory(int device) {
  std::shared_lock lock(blocks.mutex);
  return device_memory() - blocks.used[device];
}

void copy(void* to, const void* from, size_t size, Stream& stream) {
  if (!size) return;
  const bool captured = stream.graph();
  if (!captured && !block_at(from) && (!stream.is_idle() || active(Fault::stuck))) {
    auto kept = std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + size);
    stream.add([=] { memcpy(to, kept->data(), size); }, Pace::prompt);
  } else {
    stream.add([=] { memmove(to, from, size); }, Pace::prompt);
  }
  if (!captured && !block_at(to)) stream.finish();
}

}  // namespace simdev
