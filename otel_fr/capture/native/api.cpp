// The table of functions for the kernels (api.h), and the recorder that they call.
#include <pthread.h>

#include <iterator>

#include "recorder.hpp"

namespace otel_fr {
namespace {

// The recorder that the kernels call, or null, and what they read first. Recorders are never freed: a kernel, a Work, or
// the callback of a future may use one at any time.
struct alignas(64) Active {
  OfrNext next{};
  std::atomic<Recorder*> recorder{nullptr};
};

Active active;

OFR_HOT int api_begin(const OfrCall* call, OfrPending* pending, OfrEnding* ending) {
  Recorder* recorder = active.recorder.load(std::memory_order_acquire);
  return recorder && recorder->on ? recorder->begin(*call, pending, ending) : 0;
}

OFR_HOT void api_end(const OfrPending* pending, uint32_t state, int64_t ended_ns) {
  static_cast<Recorder*>(pending->recorder)->end(*pending, state, ended_ns);
}

void api_wait(const OfrPending* pending, int64_t waited_ns) {
  static_cast<Recorder*>(pending->recorder)->wait(pending->ticket, waited_ns);
}

void api_watch(void* recorder, int change) { static_cast<Recorder*>(recorder)->core().watched += change; }

void api_no_future(const OfrPending* pending, const OfrEnding* ending) {
  static_cast<Recorder*>(pending->recorder)->no_future(*ending);
}

void api_failed() {
  if (Recorder* recorder = active.recorder.load(std::memory_order_acquire)) recorder->failed();
}

// In the child of a fork: the lock may be held by a thread that it does not have. And where Python has ended: there are no
// frames to read.
void stop() {
  __atomic_store_n(&active.next.on, 0, __ATOMIC_RELAXED);
  if (Recorder* recorder = active.recorder.exchange(nullptr)) recorder->on = 0;
}

const OfrApi table = {OFR_API_VERSION, &active.next, api_begin, api_end, api_wait, api_watch, api_no_future, api_failed};

}  // namespace

void set_active(Recorder* recorder) {
  static const int registered = pthread_atfork(nullptr, nullptr, stop) + Py_AtExit(stop);
  (void)registered;
  active.recorder = recorder;
  __atomic_store_n(&active.next.on, recorder ? 1u : 0u, __ATOMIC_RELAXED);
}

const OfrApi* api() { return &table; }

OFR_HOT void set_next(const Core& core, const void* recorder, const RecentCalls& recent, const LiveGroup& group) {
  const void* lines[std::size(active.next.lines)] = {&core, recorder, &recent, &group, group.ring};
  core.ring->next_lines(*group.ring, lines + 5);
  for (size_t i = 0; i < std::size(active.next.calls); ++i) {
    __atomic_store_n(&active.next.calls[i].at, recent.next(i).at, __ATOMIC_RELAXED);
    __atomic_store_n(&active.next.calls[i].size, recent.next(i).size, __ATOMIC_RELAXED);
  }
  for (size_t i = 0; i < std::size(lines); ++i) __atomic_store_n(active.next.lines + i, lines[i], __ATOMIC_RELAXED);
}

}  // namespace otel_fr
