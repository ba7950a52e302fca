#include "recorder.hpp"

#include <Python.h>
#include <pthread.h>
#include <time.h>

#include <atomic>
#include <cstdio>

#include "frames.h"

namespace otel_fr {
namespace {

constexpr uint8_t kFlagCoalesced = 1;
constexpr size_t kMaxSignatures = 65536, kMaxSites = 65536, kMaxCodes = 16384, kMaxPairs = 65536;  // as in Python
// Each miss takes one attempt; the references of all of them are stale at most a few times.
constexpr int kAttempts = 128;

int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// As capture/recorder.py warns, of an error that Python does not see.
constexpr char kFailed[] =
    "otel-fr: recording failed for a call, so this rank's records decide no verdict\n";

// What the recorder knows of a thread. A new thread never has what an earlier one left.
struct ThreadState {
  Recorder* recorder = nullptr;
  uint32_t ref = 0, generation = 0;
};

thread_local ThreadState thread_state;

}  // namespace

uint64_t Pairs::next(const Pair& pair) {
  auto found = counts_.find(pair);
  if (found != counts_.end()) return found->second++;
  if (counts_.size() >= kMaxPairs) {
    for (size_t i = 0; i < kMaxPairs / 2; ++i) {
      counts_.erase(order_.front());
      order_.pop_front();
    }
  }
  counts_.emplace(pair, 1);
  order_.push_back(pair);
  return 0;
}

// What is known of one call so far, across misses.
struct Recorder::Attempt {
  LiveGroup* group = nullptr;  // under the mutex only
  int64_t signature = KeyTable::kNone;
  SiteKey site;
  bool main_site = false, has_batch = false;
  uint32_t site_ref = 0;
  uint64_t batch = 0;
};

Recorder::Recorder(std::shared_ptr<Core> core, std::unique_ptr<Misses> misses, unsigned long main_thread)
    : core_(std::move(core)), misses_(std::move(misses)), main_thread_(main_thread) {}

LiveGroup* Recorder::find_group(std::string_view name) {
  auto found = groups_.find(name);
  return found == groups_.end() ? nullptr : found->second.get();
}

int Recorder::begin(const OfrCall& call, OfrPending* pending) {
  Attempt attempt;
  for (int i = 0; i < kAttempts; ++i) {
    Miss miss;
    {
      std::lock_guard<std::mutex> lock(core_->mutex);
      if (!on || !core_->ring) return 0;
      miss = look_up(call, attempt);
      if (miss == Miss::kIgnored) return 0;
      if (miss == Miss::kNone) {
        if (int recorded = record(call, attempt, pending)) return recorded;
        continue;  // defining the group again has retired the other references
      }
    }
    if (!resolve(miss, call, attempt)) break;
  }
  give_up(call);
  return 0;
}

Recorder::Miss Recorder::look_up(const OfrCall& call, Attempt& attempt) {
  LiveGroup* group = attempt.group = find_group({call.group, call.group_length});
  if (!group) return Miss::kIgnored;  // created before recording began: its numbers are unknown
  if (group->index < 0) return Miss::kGroup;
  uint32_t generation = core_->ring->generation();
  attempt.signature = group->signatures.find(call.key, call.key_words);
  if (attempt.signature == KeyTable::kNone) return Miss::kSignature;
  const Signature& signature = signatures_[attempt.signature];
  if (signature.mode == OFR_MODE_IGNORE) return Miss::kIgnored;
  if (signature.generation != generation) return Miss::kSignature;
  if (with_sites) {
    if (!attempt.main_site) {
      auto* own = PyGILState_GetThisThreadState();
      walk_locked(own, &attempt.site);
      if (attempt.site.unknown) return Miss::kCode;
      if (!attempt.site.found && pthread_self() != main_thread_) return Miss::kMainSite;
    }
    int64_t found = site_generation_ == generation ? sites_.find(attempt.site.words, attempt.site.size) : KeyTable::kNone;
    if (found == KeyTable::kNone) return Miss::kSite;
    attempt.site_ref = static_cast<uint32_t>(found);
  }
  if (thread_state.recorder != this || thread_state.generation != generation) return Miss::kThread;
  if (signature.coalesces && !attempt.has_batch && misses_->in_batch()) return Miss::kBatch;
  return Miss::kNone;
}

bool Recorder::resolve(Miss miss, const OfrCall& call, Attempt& attempt) {
  uint32_t ref = 0, generation = 0;
  switch (miss) {
    case Miss::kGroup:
      return misses_->define_group(call);
    case Miss::kSignature: {
      Signature signature;
      if (!misses_->define_signature(call, &signature)) return false;
      store_signature(call, signature);
      return true;
    }
    case Miss::kSite:
      if (!misses_->define_site(attempt.main_site, &ref, &generation)) return false;
      store_site(attempt.site, ref, generation);
      return true;
    case Miss::kMainSite:
      attempt.main_site = true;
      return misses_->main_site(&attempt.site);
    case Miss::kThread:
      if (!misses_->define_thread(&ref, &generation)) return false;
      thread_state.recorder = this;
      thread_state.ref = ref;
      thread_state.generation = generation;
      return true;
    case Miss::kCode:
      return misses_->classify(attempt.site.unknown);
    case Miss::kBatch:
      attempt.has_batch = true;
      return misses_->batch(call, &attempt.batch);
    default:
      return true;
  }
}

// The caller holds the mutex, and everything that the record refers to is known.
int Recorder::record(const OfrCall& call, const Attempt& attempt, OfrPending* pending) {
  LiveGroup& group = *attempt.group;
  const Signature& signature = signatures_[attempt.signature];
  Ring& ring = *core_->ring;
  if (!ring.has_reference(*group.ring, signature.generation)) return 0;
  Slot slot = numbered(call, group, signature, attempt.batch);
  slot.signature = signature.ref;
  slot.site = attempt.site_ref;
  slot.thread = thread_state.ref;
  slot.generation = signature.generation;
  slot.timeout_ms = call.timeout_ms > 0 ? static_cast<uint64_t>(call.timeout_ms) : signature.timeout_ms;
  slot.issued_ns = monotonic_ns();
  pending->recorder = this;
  pending->ticket = ring.append(*group.ring, slot);
  pending->group_index = group.index;
  pending->sequence = call.kind == kCollective ? slot.coll_seq : 0;
  pending->mode = signature.mode;
  pending->slot = static_cast<uint32_t>(attempt.signature);
  pending->epoch = signature_epoch_;
  pending->has_no_future = signature.has_no_future;
  return 1;
}

// Counts a call, as PyTorch does: capture/recorder.py, `_numbers`.
Slot Recorder::numbered(const OfrCall& call, LiveGroup& group, const Signature& signature, uint64_t batch) {
  Slot slot{};
  slot.kind = static_cast<uint8_t>(call.kind);
  slot.op_id = group.op + 1;
  group.op += signature.op_step;
  if (batch) {
    slot.flags = kFlagCoalesced;
    if (group.batch != batch) {
      group.batch = batch;
      group.batch_coll = group.batch_p2p = 0;
    }
  }
  if (call.kind == kCollective) {
    if (batch && group.batch_coll) {
      slot.coll_seq = group.batch_coll;
    } else {
      slot.coll_seq = group.coll + 1;
      group.coll += signature.step;
      if (batch) group.batch_coll = slot.coll_seq;
    }
    slot.p2p_seq = group.p2p;
  } else if (call.kind == kP2P) {
    slot.pair_index = static_cast<uint32_t>(group.pairs.next({call.code, signature.peer, signature.tag}));
    if (!batch || !group.batch_p2p) {
      ++group.p2p;
      if (batch) group.batch_p2p = group.p2p;
    }
    slot.coll_seq = group.coll;
    slot.p2p_seq = batch ? group.batch_p2p : group.p2p;
  } else {
    slot.coll_seq = ++group.monitored;
    group.coll += signature.step;
    slot.p2p_seq = group.p2p;
  }
  return slot;
}

// The call cannot be recorded. The numbers must still agree with PyTorch's.
void Recorder::give_up(const OfrCall& call) {
  std::lock_guard<std::mutex> lock(core_->mutex);
  if (!on || !core_->ring) return;
  LiveGroup* group = find_group({call.group, call.group_length});
  if (!group) return;
  ++group->op;
  ++(call.kind == kCollective ? group->coll : call.kind == kP2P ? group->p2p : group->monitored);
  core_->ring->count(Ring::kDropped, 1);
}

void Recorder::store_signature(const OfrCall& call, const Signature& signature) {
  std::lock_guard<std::mutex> lock(core_->mutex);
  if (!core_->ring) return;
  if (signatures_.size() >= kMaxSignatures || signature_generation_ != core_->ring->generation()) {
    for (auto& entry : groups_) entry.second->signatures.clear();
    signatures_.clear();
    ++signature_epoch_;
    signature_generation_ = core_->ring->generation();
  }
  LiveGroup* group = find_group({call.group, call.group_length});
  if (!group) return;
  signatures_.push_back(signature);
  group->signatures.set(call.key, call.key_words, static_cast<int64_t>(signatures_.size() - 1));
}

void Recorder::store_site(const SiteKey& key, uint32_t ref, uint32_t generation) {
  std::lock_guard<std::mutex> lock(core_->mutex);
  if (!core_->ring || generation != core_->ring->generation()) return;
  if (site_generation_ != generation || sites_.size() >= kMaxSites) {
    sites_.clear();
    site_generation_ = generation;
  }
  sites_.set(key.words, key.size, ref);
}

bool Recorder::set_library(const void* code, bool is_library) {
  std::lock_guard<std::mutex> lock(core_->mutex);
  bool room = codes_.size() < kMaxCodes;
  if (!room) {
    // Their addresses may be used again, so a later key must not equal an earlier one.
    codes_.clear();
    sites_.clear();
  }
  codes_.set(code, is_library ? CodeTable::kLibrary : CodeTable::kUser);
  return room;
}

void Recorder::walk(const void* thread, SiteKey* site) {
  std::lock_guard<std::mutex> lock(core_->mutex);
  walk_locked(thread, site);
}

void Recorder::walk_locked(const void* thread, SiteKey* site) {
  site->size = 0;
  site->found = false;
  site->unknown = nullptr;
  if (!thread) return;
  const void* frame = ofr_frame_first(thread);
  for (size_t steps = 0; frame; ++steps, frame = ofr_frame_back(frame)) {
    if (steps == SiteKey::kMaxInner) return;
    const void* code = ofr_frame_code(frame);
    CodeTable::Class found = codes_.find(code);
    if (found == CodeTable::kUser) break;
    if (found == CodeTable::kNew) {
      site->unknown = code;
      return;
    }
  }
  if (!frame) return;
  site->found = true;
  for (size_t kept = 0; frame && kept < SiteKey::kKeyed; ++kept, frame = ofr_frame_back(frame)) {
    const void* code = ofr_frame_code(frame);
    if (codes_.find(code) == CodeTable::kNew) {  // it must live as long as the key
      site->unknown = code;
      return;
    }
    site->words[site->size++] = reinterpret_cast<uintptr_t>(code);
    site->words[site->size++] = static_cast<uint64_t>(ofr_frame_position(frame));
  }
}

void Recorder::end(uint64_t ticket, int64_t group_index, uint64_t sequence, uint32_t state, int64_t ended_ns) {
  if (!on) return;
  std::lock_guard<std::mutex> lock(core_->mutex);
  if (on && core_->ring) core_->ring->complete(ticket, group_index, sequence, state, ended_ns);
}

void Recorder::wait(uint64_t ticket, int64_t waited_ns) {
  if (!on) return;
  std::lock_guard<std::mutex> lock(core_->mutex);
  if (on && core_->ring) core_->ring->wait(ticket, waited_ns);
}

void Recorder::no_future(const OfrPending& pending) {
  std::lock_guard<std::mutex> lock(core_->mutex);
  if (pending.epoch == signature_epoch_ && pending.slot < signatures_.size())
    signatures_[pending.slot].has_no_future = true;
}

void Recorder::failed() {
  static std::atomic<bool> has_warned{false};
  if (!has_warned.exchange(true)) std::fputs(kFailed, stderr);
  std::lock_guard<std::mutex> lock(core_->mutex);
  if (on && core_->ring) core_->ring->count(Ring::kHookErrors, 1);
}

void Recorder::add_group(const std::string& name) {
  std::lock_guard<std::mutex> lock(core_->mutex);
  auto group = std::make_unique<LiveGroup>();
  group->name = name;
  std::string_view key = group->name;
  groups_.erase(key);
  groups_.emplace(key, std::move(group));
}

void Recorder::set_index(const std::string& name, int64_t index) {
  std::lock_guard<std::mutex> lock(core_->mutex);
  LiveGroup* group = find_group(name);
  if (!group || !core_->ring) return;
  if (group->index >= 0 && group->index != index) {  // it has other numbers now: group_recorder.py, `renumber`
    core_->ring->remove_group(group->index);
    group->signatures.clear();
  }
  group->ring = core_->ring->group(index);
  group->index = group->ring ? index : -1;
}

void Recorder::remove_group(const std::string& name) {
  std::lock_guard<std::mutex> lock(core_->mutex);
  auto found = groups_.find(name);
  if (found == groups_.end()) return;
  if (core_->ring && found->second->index >= 0) core_->ring->remove_group(found->second->index);
  groups_.erase(found);
}

void Recorder::close() {
  on = 0;
  std::lock_guard<std::mutex> lock(core_->mutex);
  groups_.clear();
  signatures_.clear();
  ++signature_epoch_;
  sites_.clear();
  codes_.clear();
}

// ---- the kernel's functions

namespace {

// Recorders are never freed: a kernel, a Work, or the callback of a future may use one at any time.
std::atomic<Recorder*> active{nullptr};
uint32_t is_on = 0;

int api_begin(const OfrCall* call, OfrPending* pending) {
  Recorder* recorder = active.load(std::memory_order_acquire);
  return recorder && recorder->on ? recorder->begin(*call, pending) : 0;
}

void api_end(const OfrPending* pending, uint32_t state, int64_t ended_ns) {
  auto* recorder = static_cast<Recorder*>(pending->recorder);
  recorder->end(pending->ticket, pending->group_index, pending->sequence, state, ended_ns);
}

void api_wait(const OfrPending* pending, int64_t waited_ns) {
  static_cast<Recorder*>(pending->recorder)->wait(pending->ticket, waited_ns);
}

void api_watch(void* recorder, int change) { static_cast<Recorder*>(recorder)->watched += change; }

void api_no_future(const OfrPending* pending) { static_cast<Recorder*>(pending->recorder)->no_future(*pending); }

void api_failed() {
  if (Recorder* recorder = active.load(std::memory_order_acquire)) recorder->failed();
}

// The mutex may be held by a thread that the child does not have: nothing is recorded there.
void after_fork() {
  __atomic_store_n(&is_on, 0, __ATOMIC_RELAXED);
  if (Recorder* recorder = active.exchange(nullptr)) recorder->on = 0;
}

const OfrApi table = {OFR_API_VERSION, &is_on, api_begin, api_end, api_wait, api_watch, api_no_future, api_failed};

}  // namespace

void set_active(Recorder* recorder) {
  static const int registered = pthread_atfork(nullptr, nullptr, after_fork);
  (void)registered;
  active = recorder;
  __atomic_store_n(&is_on, recorder ? 1u : 0u, __ATOMIC_RELAXED);
}

const OfrApi* api() { return &table; }

}  // namespace otel_fr
