// Works of nccl2: when PyTorch sees that a device has begun and ended a call.
//
// nccl2's watchdog asks once a second how far each call is, and each new call asks for those before it. What they find is in
// the Work; it is taken from there. Nothing here waits, takes the GIL, keeps a Work or a tensor, or touches a device, except
// that `is_captured` asks whether a stream is being captured.
//
// Order of locks: a Work's, `DeviceCalls::lock_`, `Core::lock`.
#pragma once

#include <torch/version.h>

// The torch whose nccl2 has Works as described here; those of others are not followed.
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

// What a Work has for its subclasses. `on_end` is called once, with `mutex` held, when PyTorch sees that the call has ended,
// and destroyed then or with the Work.
struct WorkParts : c10d::Work {
  static std::mutex& mutex(c10d::Work& work) { return work.*&WorkParts::mutex_; }
  static bool is_over(c10d::Work& work) { return work.*&WorkParts::completed_; }
  static bool has_failed(c10d::Work& work) { return (work.*&WorkParts::exception_) != nullptr; }
  static std::function<void()>& on_end(c10d::Work& work) { return work.*&WorkParts::recordFunctionEndCallback_; }
};

// Up to its state: the members of c10d::nccl2::WorkNCCL (nccl2/WorkNCCL.hpp, whose includes need CUDA's headers).
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

// A call in flight, or a batch of them, that has one Work. The Work has it as `on_end`, so it is destroyed before the Work's
// memory is freed.
class DeviceCall {
 public:
  explicit DeviceCall(const OfrPending& first, std::vector<OfrPending> others = {})
      : first_(first), others_(std::move(others)) {}
  // std::function takes a copy of what it is given: only such a copy is ever followed.
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
  c10d::Work* work_ = nullptr;  // null: it is not followed
  DeviceCall *previous_ = nullptr, *next_ = nullptr;
  Mark mark_ = kUnknown;  // what the ring says
};

// All calls in flight, oldest first, and the thread that asks which of them the devices have begun.
//
// Never destroyed: watchdogs may run until the process ends.
class DeviceCalls {
 public:
  static DeviceCalls& of(const OfrApi* api, int64_t (*clock)()) {
    static auto* all = new DeviceCalls(api, clock);
    return *all;
  }

  // False: it is no Work that can be followed.
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

  // The stream that calls are issued on is being captured into a graph: a Work of such a call never ends.
  static bool is_captured(c10::Device device) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    return guard.isStreamCapturing(guard.getStream(device));
  }

 private:
  friend class DeviceCall;

  static constexpr std::chrono::milliseconds kPeriod{500};  // nccl2's watchdog asks once a second

  DeviceCalls(const OfrApi* api, int64_t (*clock)()) : api_(api), clock_(clock) {
    static DeviceCalls* forked = this;
    pthread_atfork([] { forked->lock_.lock(); }, [] { forked->lock_.unlock(); }, [] { forked->lock_.unlock(); });
    start();
  }

  // Without signals: they are the job's.
  void start() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this] { run(); }).detach();
    } catch (...) {  // no thread can be started: only ends are known
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

  // With the lock of the Work, which has not said in its own state yet that it is over.
  void end(DeviceCall& call) {
    c10d::Work& work = *call.work_;
    remove(call);
    if (!WorkParts::has_failed(work)) {
      // Its state says only then that it has completed.
      const bool is_state = state_of(work) == DeviceWork::kBegun;
      are_states_ = is_state && !is_other_;
      is_other_ = is_other_ || !is_state;
    }
    record_end(call, work);
  }

  // The Work is destroyed before the call has ended: its group is, or was aborted.
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
  // What is read as the state of a Work is that: of each call that completed, it said that it had begun, and of one at least.
  std::atomic<bool> are_states_{false}, is_other_{false};
};

inline DeviceCall::~DeviceCall() {
  if (work_) owner_->drop(*this);
}

inline void DeviceCall::operator()() { owner_->end(*this); }

}  // namespace otel_fr

#endif
