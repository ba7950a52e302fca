#include "recorder.hpp"

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <cstdio>
#include <string>

#include "frames.h"

namespace otel_fr {
namespace {

constexpr uint8_t kFlagCoalesced = 1;
constexpr size_t kMaxSignatures = 65536, kMaxSites = 65536, kMaxCodes = 16384;  // as in Python
// Each miss takes one attempt. References become stale at most a few times during one call.
constexpr int kAttempts = 128;

int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// The warning of capture/group_recorder.py, for errors that Python does not see.
constexpr char kFailed[] =
    "otel-fr: a call could not be recorded; this rank's records are ignored when judging\n";

// This thread's state in one recorder. A new thread never inherits the state of an earlier thread.
struct ThreadState {
  Recorder* recorder = nullptr;
  ThreadRef thread;
};

thread_local ThreadState thread_state;

std::string_view bytes_of(const OfrCall& call) { return {reinterpret_cast<const char*>(call.key), call.key_words * 8}; }

}  // namespace

// What has been looked up for one call so far, across misses.
struct Recorder::Attempt {
  // `group`, `signature` and `site_ref` are valid only under the lock, after `look_up` has found everything.
  LiveGroup* group = nullptr;
  const Signature* signature = nullptr;
  uint32_t site_ref = 0;
  SiteKey site;
  bool main_site = false, has_batch = false;
  uint64_t batch = 0;
};

Recorder::Recorder(std::shared_ptr<Core> core, std::unique_ptr<Misses> misses, unsigned long main_thread,
                   PyObject* batches)
    : core_(std::move(core)),
      batches_(batches),
      main_thread_(main_thread),
      misses_(std::move(misses)) {}

LiveGroup* Recorder::find_group(std::string_view name) {
  auto found = groups_.find(name);
  return found == groups_.end() ? nullptr : found->second.get();
}

// The innermost frame of this thread. A thread needs no GIL to read its own frames.
const void* Recorder::own_frames() const {
  const void* state = PyGILState_GetThisThreadState();
  return state ? ofr_frame_first(state) : nullptr;
}

// Reference of the calling thread, or null if it has none in this generation of the ring.
const ThreadRef* Recorder::own_thread() const {
  const ThreadRef& thread = thread_state.thread;
  return thread_state.recorder == this && thread.generation == core_->ring->generation() ? &thread : nullptr;
}

// True if some group coalesces. The GIL is not needed: this thread has opened its own batches, and the batches of other threads
// do not matter.
bool Recorder::in_batch() const { return batches_ && PyDict_GET_SIZE(batches_) != 0; }

int Recorder::begin(const OfrCall& call, OfrPending* pending) {
  Attempt attempt;
  for (int i = 0; i < kAttempts; ++i) {
    Miss miss;
    {
      std::lock_guard<std::mutex> guard(core_->lock);
      if (!on || !core_->ring) return 0;
      miss = look_up(call, attempt);
      if (miss == Miss::kIgnored) return 0;
      if (miss == Miss::kNone) {
        if (record(call, attempt, pending)) return 1;
        continue;  // defining the group again has made the other references stale
      }
    }
    if (!resolve(miss, call, attempt)) break;
  }
  give_up(call);
  return 0;
}

// Looks up the group, the signature, the call site, the thread and the batch.
Recorder::Miss Recorder::look_up(const OfrCall& call, Attempt& attempt) {
  LiveGroup* group = attempt.group = find_group({call.group, call.group_length});
  if (!group) return Miss::kIgnored;  // created before recording began: its numbers are unknown
  if (group->index < 0) return Miss::kGroup;
  const uint32_t generation = core_->ring->generation();
  const auto known = group->signatures.find(bytes_of(call));
  if (known == group->signatures.end()) return Miss::kSignature;
  const Signature& signature = known->second;
  attempt.signature = &signature;
  if (signature.mode == OFR_MODE_IGNORE) return Miss::kIgnored;
  if (signature.generation != generation) return Miss::kSignature;
  if (!attempt.main_site) {
    walk_locked(own_frames(), &attempt.site);
    if (attempt.site.unknown) return Miss::kCode;
    if (!attempt.site.size && pthread_self() != main_thread_) return Miss::kMainSite;
  }
  const auto site = sites_.find(attempt.site.words);
  if (site == sites_.end() || site_generation_ != generation) return Miss::kSite;
  attempt.site_ref = site->second;
  if (!own_thread()) return Miss::kThread;
  if (signature.coalesces && !attempt.has_batch && in_batch()) return Miss::kBatch;
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
      thread_state = {this, {ref, generation}};
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

// Appends the record. The caller holds the lock, and `look_up` has found everything. False: references have become stale.
bool Recorder::record(const OfrCall& call, const Attempt& attempt, OfrPending* pending) {
  LiveGroup& group = *attempt.group;
  const Signature& signature = *attempt.signature;
  const uint64_t batch = attempt.batch;
  Ring& ring = *core_->ring;
  RingGroup& in_ring = *ring.group(group.index);
  if (!ring.has_reference(in_ring, signature.generation)) return false;
  Slot slot{};
  number(call, group, signature, batch, slot);
  slot.signature = signature.ref;
  slot.site = attempt.site_ref;
  slot.thread = own_thread()->ref;
  slot.generation = signature.generation;
  slot.timeout_ms = slot_timeout(call.timeout_ms > 0 ? static_cast<uint64_t>(call.timeout_ms) : signature.timeout_ms);
  slot.issued_ns = monotonic_ns();
  pending->recorder = this;
  pending->ticket = ring.append(in_ring, slot);
  pending->group_index = group.index;
  pending->sequence = call.kind == kCollective ? slot.coll_seq : 0;
  pending->mode = batch && signature.mode == OFR_MODE_DEVICE ? uint32_t{OFR_MODE_BATCH} : signature.mode;
  return true;
}

// Counts a call as PyTorch does; see `_numbers` in capture/recorder.py.
void Recorder::number(const OfrCall& call, LiveGroup& group, const Signature& signature, uint64_t batch, Slot& slot) {
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
    slot.pair_index = static_cast<uint32_t>(group.pairs.next(signature.pair));
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
}

// Counts a call that cannot be recorded: the numbers must still agree with PyTorch's.
void Recorder::give_up(const OfrCall& call) {
  std::lock_guard<std::mutex> guard(core_->lock);
  if (!on || !core_->ring) return;
  LiveGroup* group = find_group({call.group, call.group_length});
  if (!group) return;
  ++group->op;
  ++(call.kind == kCollective ? group->coll : call.kind == kP2P ? group->p2p : group->monitored);
  core_->ring->count(Ring::kDropped, 1);
}

void Recorder::store_signature(const OfrCall& call, const Signature& signature) {
  std::lock_guard<std::mutex> guard(core_->lock);
  if (!core_->ring) return;
  if (signature_count_ >= kMaxSignatures || signature_generation_ != core_->ring->generation()) {
    for (auto& entry : groups_) entry.second->signatures.clear();
    signature_count_ = 0;
    signature_generation_ = core_->ring->generation();
  }
  LiveGroup* group = find_group({call.group, call.group_length});
  if (!group) return;
  group->signatures.insert_or_assign(std::string(bytes_of(call)), signature);
  ++signature_count_;
}

void Recorder::store_site(const SiteKey& key, uint32_t ref, uint32_t generation) {
  std::lock_guard<std::mutex> guard(core_->lock);
  if (!core_->ring || generation != core_->ring->generation()) return;
  if (site_generation_ != generation || sites_.size() >= kMaxSites) {
    sites_.clear();
    site_generation_ = generation;
  }
  sites_[key.words] = ref;
}

bool Recorder::set_library(const void* code, bool is_library) {
  std::lock_guard<std::mutex> guard(core_->lock);
  bool room = codes_.size() < kMaxCodes;
  if (!room) {
    // Addresses of code objects may be reused from now on, so keys with old addresses must not match.
    codes_.clear();
    sites_.clear();
  }
  codes_[code] = is_library;
  return room;
}

void Recorder::walk(const void* thread, SiteKey* site) {
  std::lock_guard<std::mutex> guard(core_->lock);
  walk_locked(thread ? ofr_frame_first(thread) : nullptr, site);
}

void Recorder::walk_locked(const void* frame, SiteKey* site) {
  *site = {};
  uint32_t inner = 0;
  OfrFrame read;
  while (frame && site->size < site->words.size()) {
    frame = ofr_frame_read(frame, &read);
    const auto known = codes_.find(read.code);
    if (known == codes_.end()) {  // callers are classified, too, so that they live as long as the key
      site->unknown = read.code;
      return;
    }
    if (!site->size && known->second) {
      if (++inner == SiteKey::kMaxInner) return;
      continue;
    }
    site->words[site->size++] = reinterpret_cast<uintptr_t>(read.code);
    site->words[site->size++] = static_cast<uint64_t>(read.position);
  }
}

void Recorder::end(const OfrPending& pending, uint32_t state, int64_t ended_ns) {
  if (!on) return;
  std::lock_guard<std::mutex> guard(core_->lock);
  if (on && core_->ring)
    core_->ring->complete(pending.ticket, pending.group_index, pending.sequence, state, ended_ns);
}

void Recorder::wait(uint64_t ticket, int64_t waited_ns) {
  if (!on) return;
  std::lock_guard<std::mutex> guard(core_->lock);
  if (on && core_->ring) core_->ring->wait(ticket, waited_ns);
}

void Recorder::failed() {
  static std::atomic<bool> has_warned{false};
  if (!has_warned.exchange(true)) std::fputs(kFailed, stderr);
  std::lock_guard<std::mutex> guard(core_->lock);
  if (on && core_->ring) core_->ring->count(Ring::kHookErrors, 1);
}

void Recorder::add_group(const std::string& name) {
  std::lock_guard<std::mutex> guard(core_->lock);
  auto group = std::make_unique<LiveGroup>();
  group->name = name;
  std::string_view key = group->name;
  groups_.erase(key);
  groups_.emplace(key, std::move(group));
}

void Recorder::set_index(const std::string& name, int64_t index) {
  std::lock_guard<std::mutex> guard(core_->lock);
  LiveGroup* group = find_group(name);
  if (!group || !core_->ring) return;
  if (group->index >= 0 && group->index != index) {  // its ranks were renumbered: group_recorder.py, `renumber`
    core_->ring->remove_group(group->index);
    group->signatures.clear();
  }
  group->index = core_->ring->group(index) ? index : -1;
}

void Recorder::remove_group(const std::string& name) {
  std::lock_guard<std::mutex> guard(core_->lock);
  auto found = groups_.find(name);
  if (found == groups_.end()) return;
  if (core_->ring && found->second->index >= 0) core_->ring->remove_group(found->second->index);
  groups_.erase(found);
}

void Recorder::close() {
  on = 0;
  std::lock_guard<std::mutex> guard(core_->lock);
  batches_ = nullptr;
  groups_.clear();
  sites_.clear();
  codes_.clear();
}

}  // namespace otel_fr
