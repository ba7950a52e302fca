// Follows Works of nccl2: records when PyTorch sees that a device has begun and ended a call.
//
// nccl2's watchdog checks the progress of each call once a second, and each new call checks the calls before it. They store
// the result in the Work, where this code reads it. Nothing here waits, takes the GIL, keeps a Work or a tensor, or touches
// a device, except that `is_captured` asks whether a stream is being captured.
//
// Order of locks: the lock of a Work, `DeviceCalls::lock_`, `Core::lock`.
#pragma once

#include <torch/version.h>

// The torch whose nccl2 has Works with the members below. Works of other versions are not followed.
#define OTEL_FR_DEVICE_WORKS (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 14)
#if OTEL_FR_DEVICE_WORKS

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <typeinfo>
#include <utility>
#include <vector>

#include "api.h"

namespace otel_fr {

// Protected members of a Work. PyTorch calls `on_end` once, with `mutex` held, when it sees that the call has ended. It
// destroys `on_end` then, or with the Work.
struct WorkParts : c10d::Work {
  static std::mutex& mutex(c10d::Work& work) { return work.*&WorkParts::mutex_; }
  static bool is_over(c10d::Work& work) { return work.*&WorkParts::completed_; }
  static bool has_failed(c10d::Work& work) { return (work.*&WorkParts::exception_) != nullptr; }
  static std::function<void()>& on_end(c10d::Work& work) { return work.*&WorkParts::recordFunctionEndCallback_; }
};

// The members of c10d::nccl2::WorkNCCL up to its state. Its own header, nccl2/WorkNCCL.hpp, needs CUDA's headers.
struct DeviceWork : c10d::Work {
  enum State : int { kNotBegun, kBegun, kCompleted, kTimedOut, kFailed };

  static bool is_one(const c10d::Work& work) {
    static std::atomic<const std::type_info*> known{nullptr};
    const std::type_info& type = typeid(work);
    if (&type == known.load(std::memory_order_relaxed)) return true;
    if (std::strcmp(type.name(), "N4c10d5nccl28WorkNCCLE")) return false;
    known = &type;
    return true;
  }

  State state() const { return state_.load(std::memory_order_acquire); }

 private:
  std::vector<at::Tensor> inputs_;
  at::Tensor input_;
  std::vector<at::Tensor> outputs_;
  std::vector<c10::intrusive_ptr<c10d::Work>> children_;
  void* group_;
  int64_t reconfigurations_;
  bool blocking_wait_;
  void *start_event_, *end_event_;
  c10::Stream stream_;
  std::chrono::steady_clock::time_point began_;
  std::chrono::milliseconds timeout_, own_timeout_;
  std::atomic<bool> is_timeout_released_;
  bool is_timed_;
  uint64_t sequence_;
  std::mutex end_mutex_;
  std::atomic<State> state_;
};

class DeviceCalls;

// A call in flight, or a batch of calls, with one Work. The Work holds this object in `on_end`, so the object is destroyed
// before the Work's memory is freed.
class DeviceCall {
 public:
  explicit DeviceCall(const OfrPending& first, std::vector<OfrPending> others = {})
      : first_(first), others_(std::move(others)) {}
  // std::function stores a copy of its argument. Only the stored copy is followed, so copies start unfollowed.
  DeviceCall(const DeviceCall& other) : first_(other.first_), others_(other.others_) {}
  DeviceCall(DeviceCall&& other) noexcept : first_(other.first_), others_(std::move(other.others_)) {}
  DeviceCall& operator=(const DeviceCall&) = delete;
  inline ~DeviceCall();
  inline void operator()();

 private:
  friend class DeviceCalls;
  enum Mark : uint8_t { kUnknown, kQueued, kBegun };

  template <class F>
  void for_each(const F& function) const {
    function(first_);
    for (const OfrPending& call : others_) function(call);
  }

  const OfrPending first_;
  std::vector<OfrPending> others_;
  DeviceCalls* owner_ = nullptr;
  c10d::Work* work_ = nullptr;  // null: not followed
  DeviceCall *previous_ = nullptr, *next_ = nullptr;
  Mark mark_ = kUnknown;  // the call's state in the ring
};

// All calls in flight, oldest first, and a thread that checks which calls the devices have begun.
//
// Never destroyed: watchdogs may run until the process ends.
class DeviceCalls {
 public:
  static DeviceCalls& of(const OfrApi* api, int64_t (*clock)()) {
    static auto* all = new DeviceCalls(api, clock);
    return *all;
  }

  // Returns false if the Work cannot be followed.
  bool follow(c10d::Work& work, DeviceCall call) {
    if (!DeviceWork::is_one(work)) return false;
    std::lock_guard<std::mutex> guard(WorkParts::mutex(work));
    if (WorkParts::is_over(work)) {
      record_end(call, work);
      return true;
    }
    auto& on_end = WorkParts::on_end(work);
    if (on_end) return false;
    on_end = std::move(call);
    add(*on_end.target<DeviceCall>(), work);
    return true;
  }

  // Returns true if the device's current stream is being captured into a graph. The Work of a captured call never ends.
  static bool is_captured(c10::Device device) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    return guard.isStreamCapturing(guard.getStream(device));
  }

 private:
  friend class DeviceCall;

  static constexpr std::chrono::milliseconds kPeriod{500};  // nccl2's watchdog checks once a second

  DeviceCalls(const OfrApi* api, int64_t (*clock)()) : api_(api), clock_(clock) {
    static DeviceCalls* forked = this;
    pthread_atfork([] { forked->lock_.lock(); }, [] { forked->lock_.unlock(); }, [] { forked->lock_.unlock(); });
    start();
  }

  // Blocks all signals in the new thread: only the job's threads handle them.
  void start() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this] { run(); }).detach();
    } catch (...) {  // no thread can be started: only ends are recorded
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void run() {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), "otel-fr-device");
#endif
    for (;;) {
      std::this_thread::sleep_for(kPeriod);
      note_begins();
    }
  }

  void note_begins() {
    std::lock_guard<std::mutex> guard(lock_);
    const int64_t now = clock_();
    for (DeviceCall* call = first_; call && are_states_; call = call->next_) {
      if (call->mark_ == DeviceCall::kBegun) continue;
      const auto mark = state_of(*call->work_) == DeviceWork::kNotBegun ? DeviceCall::kQueued : DeviceCall::kBegun;
      if (mark == call->mark_) continue;
      call->mark_ = mark;
      call->for_each([&](const OfrPending& one) { api_->wait(&one, mark == DeviceCall::kQueued ? OFR_POSTED : now); });
    }
  }

  void add(DeviceCall& call, c10d::Work& work) {
    std::lock_guard<std::mutex> guard(lock_);
    call.owner_ = this;
    call.work_ = &work;
    call.previous_ = last_;
    (last_ ? last_->next_ : first_) = &call;
    last_ = &call;
  }

  void remove(DeviceCall& call) {
    std::lock_guard<std::mutex> guard(lock_);
    (call.previous_ ? call.previous_->next_ : first_) = call.next_;
    (call.next_ ? call.next_->previous_ : last_) = call.previous_;
    call.work_ = nullptr;
  }

  // The caller holds the Work's lock. The Work's `state_` does not show the end yet.
  void end(DeviceCall& call) {
    c10d::Work& work = *call.work_;
    remove(call);
    if (!WorkParts::has_failed(work)) {
      // The state must still be kBegun: PyTorch sets kCompleted later. Else `state_` is not the Work's state.
      const bool is_state = state_of(work) == DeviceWork::kBegun;
      are_states_ = is_state && !is_other_;
      is_other_ = is_other_ || !is_state;
    }
    record_end(call, work);
  }

  // The Work is destroyed before the call has ended, because its group is destroyed or was aborted.
  void drop(DeviceCall& call) {
    remove(call);
    call.for_each([&](const OfrPending& one) { api_->end(&one, OFR_UNKNOWN, 0); });
  }

  void record_end(const DeviceCall& call, c10d::Work& work) {
    const uint32_t state = WorkParts::has_failed(work) ? OFR_FAILED : OFR_COMPLETED;
    const int64_t now = clock_();
    call.for_each([&](const OfrPending& one) { api_->end(&one, state, now); });
  }

  static DeviceWork::State state_of(c10d::Work& work) { return static_cast<DeviceWork&>(work).state(); }

  const OfrApi* const api_;
  int64_t (*const clock_)();
  std::mutex lock_;
  DeviceCall *first_ = nullptr, *last_ = nullptr;
  // `is_other_`: a completed call was not kBegun in `end`, so `state_` is not the Work's state. `are_states_`: at least one
  // call has completed, and all were kBegun.
  std::atomic<bool> are_states_{false}, is_other_{false};
};

inline DeviceCall::~DeviceCall() {
  if (work_) owner_->drop(*this);
}

inline void DeviceCall::operator()() { owner_->end(*this); }

}  // namespace otel_fr

#endif
