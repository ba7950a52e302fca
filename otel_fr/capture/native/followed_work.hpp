// Follows a Work without a future (gloo's send, recv, reduce_scatter): its end is recorded when a thread waits for it or
// drops it.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/version.h>

#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "api.h"

namespace otel_fr {

// The newest torch for which `FollowedWork` has all virtual methods of Work (tests/unit/capture/test_followed_work.py).
constexpr int kKnownMajor = 2, kKnownMinor = 14;
constexpr bool kWorksAreKnown =
    TORCH_VERSION_MAJOR < kKnownMajor || (TORCH_VERSION_MAJOR == kKnownMajor && TORCH_VERSION_MINOR <= kKnownMinor);

// Methods that some versions of torch do not have.
template <class W>
void block_stream_until(W& work) {
  if constexpr (requires { work.blockCurrentStream(); }) work.blockCurrentStream();
}

template <class W>
std::chrono::milliseconds timeout_of(const W& work) {
  if constexpr (requires { work.getTimeout(); }) return work.getTimeout();
  return kNoTimeout;
}

// Replaces torch's own Work: passes every call on to it, and keeps it alive.
//
// Only the first wait is recorded, as in capture/waits.py.
class FollowedWork final : public c10d::Work {
 public:
  using Milliseconds = std::chrono::milliseconds;

  FollowedWork(const OfrApi* api, c10::intrusive_ptr<c10d::Work> work, const OfrPending& call, int64_t (*clock)())
      : c10d::Work(-1, work->retrieveOpType()), api_(api), clock_(clock), work_(std::move(work)), call_(call) {
    if (is_message()) api_->wait(&call_, OFR_POSTED);
  }
  ~FollowedWork() override { drop(); }

  bool wait(Milliseconds timeout = kNoTimeout) override {
    if (is_over_.exchange(true)) return work_->wait(timeout);
    if (is_message()) api_->wait(&call_, clock_());
    bool completed = false;  // false: it was aborted
    try {
      completed = work_->wait(timeout);
    } catch (...) {
      api_->end(&call_, OFR_FAILED, clock_());
      throw;
    }
    api_->end(&call_, completed ? OFR_COMPLETED : OFR_FAILED, clock_());
    return completed;
  }

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override { work_->synchronize(); }
  void abort() override { work_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->getFuture(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return work_->getFutureResult(); }
  float getDuration() const override { return work_->getDuration(); }
  uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }
  // Without "override", because older versions of torch lack these methods.
  void blockCurrentStream() { block_stream_until(*work_); }
  Milliseconds getTimeout() const { return timeout_of(*work_); }

  // Called when only weak references are left.
  void release_resources() override {
    drop();
    work_.reset();
  }

 private:
  bool is_message() const { return !call_.sequence; }

  // Nobody can wait for the Work any more, so how it ended will not become known.
  void drop() noexcept {
    if (!is_over_.exchange(true)) api_->end(&call_, OFR_UNKNOWN, 0);
  }

  const OfrApi* const api_;
  int64_t (*const clock_)();
  c10::intrusive_ptr<c10d::Work> work_;
  const OfrPending call_;
  std::atomic<bool> is_over_{false};
};

}  // namespace otel_fr
