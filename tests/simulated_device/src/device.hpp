// What the simulated NCCL needs from the simulated CUDA runtime, beside CUDA's own functions.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <memory>

#include "clock.hpp"

#define SIMDEV_API extern "C" __attribute__((visibility("default")))

namespace simdev {

using Work = std::function<void()>;

// Work that may wait never runs on the thread that enqueues it.
enum class Pace { prompt, may_wait };

// Runs the work once the stream has executed what is before it. While the stream is captured, the work becomes part of the graph.
void enqueue(cudaStream_t stream, Work work, Pace pace);
bool is_capturing(cudaStream_t stream);

// One record of an event.
struct Mark {
  std::atomic<bool> is_reached{false};
  std::atomic<double> at{0};
  void reach() {
    at = now();
    is_reached = true;
    is_reached.notify_all();
  }
  void wait() const { is_reached.wait(false); }
};

// The record of an event with timing, if it is the last item in the stream; else null. A kernel that starts late marks it as
// not reached, so that the event shows the true start.
std::shared_ptr<Mark> mark_at_end(cudaStream_t stream);

// Whether SIMDEV_TRACE is set. If so, NCCL kernels and what is not simulated are written to stderr.
bool is_traced();

}  // namespace simdev
