#include "kernels.hpp"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

#include "../faults.hpp"
#include "streams.hpp"

namespace simdev {
namespace {

constexpr double CYCLES_PER_SECOND = 2e9;  // of torch.cuda._sleep

struct Kernel {
  enum { nothing, fill, spin } kind = nothing;
  size_t width = 0;  // bytes of an element that is filled
};

struct Kernels {
  std::shared_mutex mutex;
  std::unordered_map<const void*, const char*> names;  // torch registers some 50,000 when it is loaded
  std::unordered_map<const void*, Kernel> known;
};
Kernels& kernels = *new Kernels;

// Bytes of the type at the beginning of this part of a mangled name; 0: it is no type that is filled.
size_t width_of_type(std::string_view mangled) {
  if (mangled.starts_with("N3c104HalfE") || mangled.starts_with("N3c108BFloat16E")) return 2;
  switch (mangled.empty() ? ' ' : mangled[0]) {
    case 'a': case 'b': case 'c': case 'h': return 1;
    case 's': case 't': return 2;
    case 'f': case 'i': case 'j': return 4;
    case 'd': case 'l': case 'm': case 'x': case 'y': return 8;
    default: return 0;
  }
}

Kernel recognize(std::string_view name) {
  constexpr std::string_view FILL = "FillFunctorI";
  if (name.find("spin_kernelEl") != name.npos) return {Kernel::spin, 0};
  const size_t at = name.find(FILL);
  if (at == name.npos || name.find("vectorized_elementwise_kernel") == name.npos) return {};
  const size_t width = width_of_type(name.substr(at + FILL.size()));
  return width ? Kernel{Kernel::fill, width} : Kernel{};
}

Kernel kernel_of(const void* function) {
  {
    std::shared_lock lock(kernels.mutex);
    if (auto found = kernels.known.find(function); found != kernels.known.end()) return found->second;
  }
  std::unique_lock lock(kernels.mutex);
  auto named = kernels.names.find(function);
  const char* name = named == kernels.names.end() ? "" : named->second;
  const Kernel kernel = recognize(name);
  if (is_traced()) fprintf(stderr, "simulated device: kernel %s: %s\n", kernel.kind ? "simulated" : "does nothing", name);
  kernels.known[function] = kernel;
  return kernel;
}

void fill(char* to, size_t count, size_t width, uint64_t value) {
  for (size_t i = 0; i < count; i++) memcpy(to + i * width, &value, width);
}

}  // namespace

void register_kernel(const void* function, const char* name) {
  std::unique_lock lock(kernels.mutex);
  kernels.names[function] = name;
}

cudaError_t launch(const void* function, void** arguments, cudaStream_t handle) {
  const Kernel kernel = kernel_of(function);
  Stream& stream = stream_of(handle);
  if (faults_are_possible()) {
    // The fault is looked up when the kernel's turn comes, because the work before it may take long.
    const auto slow = [] {
      if (auto ms = active(Fault::kernel_ms)) sleep_for(*ms / 1e3);
    };
    stream.add(slow, active(Fault::kernel_ms) ? Pace::may_wait : Pace::prompt);
  }
  if (kernel.kind == Kernel::fill) {
    const size_t count = *static_cast<int*>(arguments[0]);
    uint64_t value = 0;
    memcpy(&value, arguments[1], kernel.width);
    char* to = *static_cast<char**>(arguments[2]);
    stream.add([=] { fill(to, count, kernel.width, value); }, Pace::prompt);
  } else if (kernel.kind == Kernel::spin) {
    const double seconds = *static_cast<int64_t*>(arguments[0]) / CYCLES_PER_SECOND;
    stream.add([=] { sleep_for(seconds); }, Pace::may_wait);
  }
  return cudaSuccess;
}

}  // namespace simdev
