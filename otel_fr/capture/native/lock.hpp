// The lock of a ring: taken twice in each call, and nearly always free.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace otel_fr {

// To take it when it is free is one instruction in place. That of the C library is the same behind a call into another
// library: a dozen cache lines and pages, none of which the training thread has in its cache after a step's computation.
// U. Drepper, "Futexes Are Tricky" (2011), mutex 2.
class Lock {
 public:
  void lock() {
    uint32_t free = kFree;
    if (!state_.compare_exchange_strong(free, kTaken, std::memory_order_acquire)) [[unlikely]]
      wait();
  }

  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) [[unlikely]]
      wake();
  }

 private:
  enum : uint32_t { kFree, kTaken, kAwaited };

#if defined(__linux__)
  [[gnu::cold, gnu::noinline]] void wait() {
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree)
      syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, kAwaited, nullptr, nullptr, 0);
  }
  [[gnu::cold, gnu::noinline]] void wake() { syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }
#else
  [[gnu::cold, gnu::noinline]] void wait() {
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree) sched_yield();
  }
  void wake() {}
#endif

  std::atomic<uint32_t> state_{kFree};
};

}  // namespace otel_fr
