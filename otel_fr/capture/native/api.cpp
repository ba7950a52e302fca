// The table of functions for the kernels (api.h), and the recorder that they call.
#include <pthread.h>

#include <utility>

#include "recorder.hpp"

namespace otel_fr {
namespace {

// The recorder that the kernels call, or null; `on` is 1 if there is one. Recorders are never freed: a kernel, a Work, or the
// callback of a future may use one at any time.
struct Active {
  uint32_t on = 0;
  std::atomic<Recorder*> recorder{nullptr};
};

Active active;

int api_begin(const OfrCall* call, OfrPending* pending) {
  Recorder* recorder = active.recorder.load(std::memory_order_acquire);
  return recorder && recorder->on ? recorder->begin(*call, pending) : 0;
}

void api_end(const OfrPending* pending, uint32_t state, int64_t ended_ns) {
  static_cast<Recorder*>(pending->recorder)->end(*pending, state, ended_ns);
}

void api_wait(const OfrPending* pending, int64_t waited_ns) {
  static_cast<Recorder*>(pending->recorder)->wait(pending->ticket, waited_ns);
}

void api_watch(void* recorder, int change) { static_cast<Recorder*>(recorder)->core().watched += change; }

void api_failed() {
  if (Recorder* recorder = active.recorder.load(std::memory_order_acquire)) recorder->failed();
}

// The recorder whose lock this thread holds during a fork. Otherwise another thread might hold the lock. The child does
// not have that thread, and would wait for the lock forever when it closes the recorder. The lock of `DeviceCalls` is
// taken first, because its handlers are registered later.
thread_local Recorder* forking = nullptr;

void before_fork() {
  forking = active.recorder.load(std::memory_order_acquire);
  if (forking) forking->core().lock.lock();
}

void after_fork() {
  if (Recorder* recorder = std::exchange(forking, nullptr)) recorder->core().lock.unlock();
}

// Also called when Python ends, because there are then no frames to read.
void stop() {
  __atomic_store_n(&active.on, 0, __ATOMIC_RELAXED);
  if (Recorder* recorder = active.recorder.exchange(nullptr)) recorder->on = 0;
}

void in_child() {
  after_fork();
  stop();
}

const OfrApi table = {OFR_API_VERSION, &active.on, api_begin, api_end, api_wait, api_watch, api_failed};

}  // namespace

void set_active(Recorder* recorder) {
  static const int registered = pthread_atfork(before_fork, after_fork, in_child) + Py_AtExit(stop);
  (void)registered;
  active.recorder = recorder;
  __atomic_store_n(&active.on, recorder ? 1u : 0u, __ATOMIC_RELAXED);
}

const OfrApi* api() { return &table; }

}  // namespace otel_fr
