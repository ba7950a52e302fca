// Kernels at torch's BackendSelect key: each call of a c10d operator is recorded and passed on, exactly once.
//
// Compiled for one version of torch (libtorch_cpu and libc10 only), without Python. Calls the table of api.h to record.
#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>
#include <torch/version.h>

#include <time.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "api.h"
#include "device_work.hpp"
#include "followed_work.hpp"

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
#if OTEL_FR_DEVICE_WORKS
using otel_fr::DeviceCall;
using otel_fr::DeviceCalls;
#endif
using otel_fr::FollowedWork;
using otel_fr::kWorksAreKnown;
using torch::jit::Stack;

OfrApi api{};
constexpr uint64_t kUnread = 0xFFFFFFFF;  // in place of the reduce op

int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// The key of a call's signature; capture/native/key.py reads it.
class Key {
 public:
  void add(uint64_t word) { words_.push_back(word); }

  void add_tensor(const at::Tensor& tensor) {
    ++tensors_;
    if (!tensor.defined()) return add(UINT64_MAX);
    auto sizes = tensor.sizes();
    const c10::Device device = tensor.device();
    if (tensors_ == 1) device_ = device;
    add(static_cast<uint64_t>(tensor.scalar_type()) | static_cast<uint64_t>(device.type()) << 8 |
        static_cast<uint64_t>(static_cast<uint8_t>(device.index())) << 16 | uint64_t{tensor.itemsize()} << 24 |
        uint64_t{sizes.size()} << 40);
    for (int64_t size : sizes) add(static_cast<uint64_t>(size));
  }

  // Adds a tensor, a list of tensors, or a list of lists: a word (bit 0: it is a list; then the number of tensors), then
  // each tensor.
  void add_tensors(const IValue& value) {
    size_t at = words_.size();
    uint64_t before = tensors_;
    add(0);
    add_nested(value);
    words_[at] = (value.isTensor() ? 0 : 1) | (tensors_ - before) << 1;
  }

  void clear() { words_.clear(); }
  const uint64_t* data() const { return words_.data(); }
  size_t size() const { return words_.size(); }
  // The device of the first tensor.
  c10::Device device() const { return device_; }

 private:
  void add_nested(const IValue& value) {
    if (value.isTensor()) return add_tensor(value.toTensor());
    if (value.isNone()) return;
    for (const IValue& item : value.toListRef()) add_nested(item);
  }

  c10::SmallVector<uint64_t, 64> words_;
  uint64_t tensors_ = 0;
  c10::Device device_{c10::DeviceType::CPU};
};

// Returns the object in a value, borrowed. `toCustomClass` also compares types and counts a reference, which takes a sixth
// of the time of a call.
template <class T>
const T& object_of(const IValue& value) {
  const IValue& slot = value.toObjectRef().getSlot(0);
  if (!slot.isCapsule()) throw std::invalid_argument("not an object of a C++ class");
  auto* object = static_cast<const c10::intrusive_ptr_target*>(slot.internalToPointer());
  if (!object) throw std::invalid_argument("an object of a C++ class that is not there");
  return static_cast<const T&>(*static_cast<const torch::CustomClassHolder*>(object));
}

void record_end(const OfrPending& call, const c10::ivalue::Future& done) {
  int64_t now = monotonic_ns();
  api.end(&call, done.hasError() ? OFR_FAILED : OFR_COMPLETED, now);
}

// The callback that records the end of a call. Each copy is counted (`api.watch`) for as long as a future holds it.
class EndCallback {
 public:
  explicit EndCallback(const OfrPending& call) : call_(call) { api.watch(call_.recorder, 1); }
  EndCallback(const EndCallback& other) : call_(other.call_) {
    if (call_.recorder) api.watch(call_.recorder, 1);
  }
  EndCallback(EndCallback&& other) noexcept : call_(other.call_) { other.call_.recorder = nullptr; }
  ~EndCallback() {
    if (call_.recorder) api.watch(call_.recorder, -1);
  }
  EndCallback& operator=(const EndCallback&) = delete;
  EndCallback& operator=(EndCallback&&) = delete;

  void operator()(c10::ivalue::Future& done) const { record_end(call_, done); }

 private:
  OfrPending call_;
};

// Returns nullptr for a group of a Python class, which has no name and no backend, and is not recorded.
const std::string* name_of(const c10d::ProcessGroup& group) {
  try {
    return &group.getGroupName();
  } catch (const c10::Error&) {
    return nullptr;
  }
}

#if OTEL_FR_DEVICE_WORKS
bool follow_on_device(c10d::Work& work, DeviceCall call) {
  return DeviceCalls::of(&api, monotonic_ns).follow(work, std::move(call));
}

std::atomic<bool> follows_batches{false};
// This thread's calls in batches that are not enqueued yet.
thread_local std::vector<OfrPending> open_batch;

std::vector<OfrPending> take_batch(int64_t group) {
  std::vector<OfrPending> calls;
  std::erase_if(open_batch, [&](const OfrPending& call) {
    if (call.group_index != group) return false;
    calls.push_back(call);
    return true;
  });
  return calls;
}

void end_batch(int64_t group, uint32_t state, int64_t ended_ns) {
  for (const OfrPending& call : take_batch(group)) api.end(&call, state, ended_ns);
}

void follow_batch(const c10::intrusive_ptr<c10d::Work>& work, int64_t group) {
  std::vector<OfrPending> calls = take_batch(group);
  if (calls.empty() || follow_on_device(*work, DeviceCall(calls.front(), {calls.begin() + 1, calls.end()}))) return;
  for (const OfrPending& call : calls) api.end(&call, OFR_UNKNOWN, 0);
}
#endif

class Kernel final : public c10::OperatorKernel {
 public:
  explicit Kernel(const OfrOperator& op)
      : op_(op), after_(DispatchKeySet(DispatchKeySet::FULL_AFTER, DispatchKey::BackendSelect)) {}

  void operator()(const OperatorHandle& handle, DispatchKeySet keys, Stack* stack) {
    OfrPending call;
    c10::Device device{c10::DeviceType::CPU};
    bool recorded = false;
    if (__atomic_load_n(api.on, __ATOMIC_RELAXED)) {
      try {
        recorded = begin(handle, *stack, &call, &device);
      } catch (...) {  // the collective continues
        api.failed();
      }
    }
    if (!recorded) return handle.redispatchBoxed(keys & after_, stack);
    try {
      handle.redispatchBoxed(keys & after_, stack);
    } catch (...) {
      api.end(&call, OFR_FAILED, monotonic_ns());
      throw;
    }
    try {
      follow(*stack, call, device);
    } catch (...) {
      api.end(&call, OFR_UNKNOWN, 0);
      api.failed();
    }
  }

 private:
  bool begin(const OperatorHandle& handle, const Stack& stack, OfrPending* pending, c10::Device* device) {
    const IValue* arguments = stack.data() + stack.size() - handle.schema().arguments().size();
    const std::string* name = name_of(object_of<c10d::ProcessGroup>(arguments[op_.group]));
    if (!name) return false;
    const std::string& group = *name;
    Key key;
    try {
      describe(arguments, key);
    } catch (...) {  // still counted and recorded: a gap in the numbers looks like a call that was left out
      api.failed();
      key.clear();
      key.add(op_.code | kUnread << 32);
    }
    *device = key.device();
    OfrCall call{};
    call.group = group.data();
    call.group_length = group.size();
    call.key = key.data();
    call.key_words = key.size();
    call.timeout_ms = op_.timeout >= 0 && arguments[op_.timeout].isInt() ? arguments[op_.timeout].toInt() : -1;
    call.code = op_.code;
    call.kind = op_.kind;
    return api.begin(&call, pending) != 0;
  }

  void describe(const IValue* arguments, Key& key) const {
    uint64_t reduce_op = 0;
    if (op_.reduce_op >= 0)
      reduce_op = 1 + static_cast<uint64_t>(object_of<c10d::ReduceOp>(arguments[op_.reduce_op]).op_);
    key.add(op_.code | reduce_op << 32);
    for (int i = 0; i < op_.tensor_count; ++i) key.add_tensors(arguments[op_.tensors[i]]);
    for (int i = 0; i < op_.number_count; ++i) key.add(static_cast<uint64_t>(arguments[op_.numbers[i]].toInt()));
    for (int i = 0; i < op_.list_count; ++i) {
      const IValue& list = arguments[op_.lists[i]];
      size_t items = list.isIntList() ? list.toIntList().size() : 0;
      key.add(items);
      if (items)
        for (int64_t item : list.toIntVector()) key.add(static_cast<uint64_t>(item));
    }
  }

  void follow(Stack& stack, const OfrPending& call, c10::Device device) {
    if (call.mode == OFR_MODE_RETURN) return api.end(&call, OFR_COMPLETED, monotonic_ns());
    if (call.mode >= OFR_MODE_DEVICE && follow_device(stack.back(), call, device)) return;
    if (call.mode != OFR_MODE_WORK) return api.end(&call, OFR_UNKNOWN, 0);
    auto& work = const_cast<c10d::Work&>(object_of<c10d::Work>(stack.back()));
    if (!has_no_future_) {
      if (auto future = future_of(work)) {
        // The callback needs no streams of the future's devices: it reads only whether the future failed.
        future->addCallback(EndCallback(call), /*uses_future=*/false);
        return;
      }
      has_no_future_ = true;
    }
    if (!kWorksAreKnown) return api.end(&call, OFR_UNKNOWN, 0);
    auto own = c10::intrusive_ptr<c10d::Work>::reclaim_copy(&work);
    auto followed = c10::make_intrusive<FollowedWork>(&api, std::move(own), call, monotonic_ns);
    stack.back() = IValue(c10::intrusive_ptr<c10d::Work>(std::move(followed)));
  }

  // Returns false if the end of the call will not become known.
  static bool follow_device(const IValue& work, const OfrPending& call, c10::Device device) {
#if OTEL_FR_DEVICE_WORKS
    if (DeviceCalls::is_captured(device)) return false;
    if (follow_on_device(const_cast<c10d::Work&>(object_of<c10d::Work>(work)), DeviceCall(call))) return true;
    if (call.mode == OFR_MODE_BATCH && follows_batches) {  // the batch has a Work, but this call has none
      open_batch.push_back(call);
      return true;
    }
#endif
    return false;
  }

  // Returns null if this Work has no future.
  static c10::intrusive_ptr<c10::ivalue::Future> future_of(c10d::Work& work) {
    try {
      return work.getFuture();
    } catch (const std::exception&) {
      return nullptr;
    }
  }

  const OfrOperator op_;
  const DispatchKeySet after_;
  // getFuture reports this by a slow exception, so it is remembered. It depends on the operator and torch's version only,
  // because only Works of gloo are asked.
  std::atomic<bool> has_no_future_{false};
};

std::unique_ptr<torch::Library> library;
// A thread may still be in a removed kernel, so kernels are never freed. The next installation uses them again.
const c10::BoxedKernel& kernel_of(const OfrOperator& op) {
  static auto* all = new std::map<std::pair<std::string, uint32_t>, c10::BoxedKernel>();
  c10::BoxedKernel& kernel = (*all)[{op.name, op.code}];
  if (!kernel.isValid()) kernel = c10::BoxedKernel::makeFromFunctor(std::make_unique<Kernel>(op));
  return kernel;
}

}  // namespace

#define OTEL_FR_EXPORT extern "C" __attribute__((visibility("default")))

// The version of torch that this kernel was compiled for.
OTEL_FR_EXPORT const char* otel_fr_torch_version() { return TORCH_VERSION; }

OTEL_FR_EXPORT uint32_t otel_fr_api_version() { return OFR_API_VERSION; }

// Name of a scalar type or device type; null: no type has that number.
OTEL_FR_EXPORT const char* otel_fr_scalar_type(int32_t number) {
  return number < 0 || number >= static_cast<int32_t>(c10::ScalarType::NumOptions)
      ? nullptr
      : c10::toString(static_cast<c10::ScalarType>(number));
}

OTEL_FR_EXPORT const char* otel_fr_device_type(int32_t number) {
  static std::string names[static_cast<int>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)];
  if (number < 0 || number >= static_cast<int32_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)) return nullptr;
  names[number] = c10::DeviceTypeName(static_cast<c10::DeviceType>(number), true);
  return names[number].c_str();
}

// Installs a kernel for each of the operators, which must exist. Returns 0, or 1 and the reason in `error`.
OTEL_FR_EXPORT int otel_fr_install(const OfrApi* table, const OfrOperator* operators, size_t count, char* error,
                                   size_t error_size) {
  try {
    TORCH_CHECK(table->version == OFR_API_VERSION, "the ring writer has another interface");
    TORCH_CHECK(!library, "kernels are installed already");
    api = *table;
    library = std::make_unique<torch::Library>(torch::Library::IMPL, "c10d", DispatchKey::BackendSelect, __FILE__,
                                               static_cast<uint32_t>(__LINE__));
    for (size_t i = 0; i < count; ++i)
      library->impl(operators[i].name, torch::CppFunction::makeFromBoxedKernel(kernel_of(operators[i])));
    return 0;
  } catch (const std::exception& reason) {
    library.reset();
    std::snprintf(error, error_size, "%s", reason.what());
    return 1;
  }
}

OTEL_FR_EXPORT void otel_fr_remove() { library.reset(); }

// Defines the operator `otel_fr::follow_batch`, which follows the batch that this thread has enqueued in a group (its index
// in the ring) by the batch's Work. Returns 0 if this kernel follows no batches.
OTEL_FR_EXPORT int otel_fr_follow_batches() {
#if OTEL_FR_DEVICE_WORKS
  static const bool is_defined = [] {
    auto* own = new torch::Library(torch::Library::FRAGMENT, "otel_fr", std::nullopt, __FILE__,
                                   static_cast<uint32_t>(__LINE__));
    own->def("follow_batch(__torch__.torch.classes.c10d.Work work, int group) -> ()", &follow_batch);
    return true;
  }();
  follows_batches = is_defined;
  return 1;
#else
  return 0;
#endif
}

// Records that a batch of this thread has failed, because it was not enqueued. `group`: its group's index in the ring.
OTEL_FR_EXPORT void otel_fr_drop_batch(int64_t group) {
#if OTEL_FR_DEVICE_WORKS
  end_batch(group, OFR_FAILED, monotonic_ns());
#endif
}
