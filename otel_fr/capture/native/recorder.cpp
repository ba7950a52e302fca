#include "recorder.hpp"

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <cstdio>
#include <iterator>

#include "frames.h"

namespace otel_fr {
namespace {

constexpr uint8_t kFlagCoalesced = 1;
constexpr size_t kMaxSignatures = 65536, kMaxSites = 65536, kMaxCodes = 16384;  // as in Python
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

// What a recorder knows of this thread. A new thread never has what an earlier one left.
struct ThreadState {
  Recorder* recorder = nullptr;
  ThreadRef thread;
};

thread_local ThreadState thread_state;

// Tells the calling thread from others that run; null: not with this compiler.
const void* this_thread() {
// Older compilers declare the builtin, and fail where it is used; so `__has_builtin` does not tell.
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__)) && \
    ((defined(__clang__) && __clang_major__ >= 14) || (!defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 11))
  return __builtin_thread_pointer();
#else
  return nullptr;
#endif
}

}  // namespace

// What a record of a call refers to.
struct Recorder::Known {
  LiveGroup* group = nullptr;
  const Signature* signature = nullptr;
  uint64_t signature_epoch = 0;
  uint32_t number = 0, site = 0;  // of the signature; reference of the site
};

// What is known of one call so far, across misses.
struct Recorder::Attempt {
  Known known;  // under the lock only
  SiteKey site;
  bool main_site = false, has_batch = false;
  uint64_t batch = 0;
};

Recorder::Recorder(std::shared_ptr<Core> core, std::unique_ptr<Misses> misses, unsigned long main_thread,
                   PyObject* batches)
    : core_(std::move(core)),
      batches_(batches),
      recent_(std::make_unique<RecentCalls>()),
      main_thread_(main_thread),
      misses_(std::move(misses)) {
  // The main thread's state exists as long as Python does, and so does recording (api.cpp); those of others may be made anew.
  if (pthread_self() != main_thread) return;
  main_pointer_ = this_thread();
  main_state_ = PyThreadState_Get();
}

LiveGroup* Recorder::find_group(std::string_view name) {
  auto found = groups_.find(name);
  return found == groups_.end() ? nullptr : found->second.get();
}

bool Recorder::is_main() const { return main_pointer_ && this_thread() == main_pointer_; }

// The innermost frame of this thread. Reading its own frames takes no GIL.
const void* Recorder::own_frames() const {
  const void* state = is_main() ? main_state_ : PyGILState_GetThisThreadState();
  return state ? ofr_frame_first(state) : nullptr;
}

// References of the calling thread. Null: it has none in this generation of the ring.
const ThreadRef* Recorder::own_thread() const {
  const bool main = is_main();
  const ThreadRef& thread = main ? main_ : thread_state.thread;
  return (main || thread_state.recorder == this) && thread.generation == core_->ring->generation() ? &thread : nullptr;
}

// Some group coalesces. Without the GIL: a batch of this thread was opened by this thread, and those of others are not asked
// for.
bool Recorder::in_batch() const { return batches_ && PyDict_GET_SIZE(batches_) != 0; }

OFR_HOT int Recorder::begin(const OfrCall& call, OfrPending* pending, OfrEnding* ending) {
  {
    std::lock_guard<Lock> guard(core_->lock);
    if (!on || !core_->ring) return 0;
    const bool with_site = with_sites;
    const RecentCalls::Entry* recent = recent_->guess(call, with_site, with_site ? own_frames() : nullptr);
    const ThreadRef* thread = own_thread();
    if (recent && thread && recent->signature.generation == core_->ring->generation() &&
        !(recent->signature.coalesces && in_batch())) {
      const Known known{recent->group, &recent->signature, recent->signature_epoch, recent->number, recent->site};
      if (int recorded = record(call, known, thread->ref, 0, pending, ending)) return recorded;
    }
  }
  return begin_any(call, pending, ending);
}

int Recorder::begin_any(const OfrCall& call, OfrPending* pending, OfrEnding* ending) {
  const uint64_t hash = RecentCalls::hash_of(call);
  Attempt attempt;
  for (int i = 0; i < kAttempts; ++i) {
    Miss miss;
    {
      std::lock_guard<Lock> guard(core_->lock);
      if (!on || !core_->ring) return 0;
      miss = look_up(call, hash, attempt);
      if (miss == Miss::kIgnored) return 0;
      if (miss == Miss::kNone) {
        if (int recorded = record(call, attempt.known, own_thread()->ref, attempt.batch, pending, ending)) return recorded;
        continue;  // defining the group again has retired the other references
      }
    }
    if (!resolve(miss, call, attempt)) break;
  }
  give_up(call);
  return 0;
}

Recorder::Miss Recorder::look_up(const OfrCall& call, uint64_t hash, Attempt& attempt) {
  const bool with_site = with_sites;
  if (with_site && !attempt.main_site) walk_locked(own_frames(), &attempt.site);
  const SiteKey* site = with_site ? &attempt.site : nullptr;
  const bool walked = !site || (!site->unknown && (site->found || attempt.main_site || pthread_self() == main_thread_));
  const RecentCalls::Entry* recent = walked ? recent_->find(call, hash, site) : nullptr;
  if (recent && recent->signature.generation == core_->ring->generation()) {
    attempt.known = {recent->group, &recent->signature, recent->signature_epoch, recent->number, recent->site};
  } else {
    Miss miss = look_up_parts(call, attempt, with_site);
    if (miss != Miss::kNone) return miss;
    RecentCalls::Entry found;
    found.group = attempt.known.group;
    found.signature = *attempt.known.signature;
    found.signature_epoch = attempt.known.signature_epoch;
    found.number = attempt.known.number;
    found.site = attempt.known.site;
    if (walked) recent_->add(call, hash, site, found);
  }
  if (!own_thread()) return Miss::kThread;
  if (attempt.known.signature->coalesces && !attempt.has_batch && in_batch()) return Miss::kBatch;
  return Miss::kNone;
}

// The group, the signature, and the call site that was walked to.
Recorder::Miss Recorder::look_up_parts(const OfrCall& call, Attempt& attempt, bool with_site) {
  attempt.known = {};
  LiveGroup* group = attempt.known.group = find_group({call.group, call.group_length});
  if (!group) return Miss::kIgnored;  // created before recording began: its numbers are unknown
  if (group->index < 0) return Miss::kGroup;
  uint32_t generation = core_->ring->generation();
  int64_t number = group->signatures.find(call.key, call.key_words);
  if (number == KeyTable::kNone) return Miss::kSignature;
  const Signature& signature = signatures_[number];
  attempt.known.signature = &signature;
  attempt.known.signature_epoch = signature_epoch_;
  attempt.known.number = static_cast<uint32_t>(number);
  if (signature.mode == OFR_MODE_IGNORE) return Miss::kIgnored;
  if (signature.generation != generation) return Miss::kSignature;
  if (with_site) {
    if (!attempt.main_site) {
      if (attempt.site.unknown) return Miss::kCode;
      if (!attempt.site.found && pthread_self() != main_thread_) return Miss::kMainSite;
    }
    int64_t found = site_generation_ == generation ? sites_.find(attempt.site.words, attempt.site.size) : KeyTable::kNone;
    if (found == KeyTable::kNone) return Miss::kSite;
    attempt.known.site = static_cast<uint32_t>(found);
  }
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
      if (is_main()) {
        main_ = {ref, generation};
      } else {
        thread_state = {this, {ref, generation}};
      }
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

// The caller holds the lock, and everything that the record refers to is known.
OFR_HOT int Recorder::record(const OfrCall& call, const Known& known, uint32_t thread, uint64_t batch,
                             OfrPending* pending, OfrEnding* ending) {
  LiveGroup& group = *known.group;
  const Signature& signature = *known.signature;
  Ring& ring = *core_->ring;
  if (!ring.has_reference(*group.ring, signature.generation)) return 0;
  Slot slot{};
  number(call, group, signature, batch, slot);
  slot.signature = signature.ref;
  slot.site = known.site;
  slot.thread = thread;
  slot.generation = signature.generation;
  slot.timeout_ms = call.timeout_ms > 0 ? static_cast<uint64_t>(call.timeout_ms) : signature.timeout_ms;
  slot.issued_ns = monotonic_ns();
  pending->recorder = this;
  pending->ticket = ring.append(*group.ring, slot);
  pending->group_index = group.ring->index;
  pending->sequence = call.kind == kCollective ? slot.coll_seq : 0;
  pending->row = group.ring->row;
  ending->mode = batch && signature.mode == OFR_MODE_DEVICE ? OFR_MODE_BATCH : signature.mode;
  ending->has_no_future = signature.has_no_future;
  ending->slot = known.number;
  ending->epoch = known.signature_epoch;
  set_next(*core_, this, *recent_, group);
  return 1;
}

// Counts a call, as PyTorch does: capture/recorder.py, `_numbers`.
inline void Recorder::number(const OfrCall& call, LiveGroup& group, const Signature& signature, uint64_t batch,
                             Slot& slot) {
  slot.kind = static_cast<uint8_t>(call.kind);
  slot.op_id = group.op + 1;
  group.op += signature.op_step;
  if (call.kind != kCollective || batch) return number_otherwise(call, group, signature, batch, slot);
  slot.coll_seq = group.coll + 1;
  group.coll += signature.step;
  slot.p2p_seq = group.p2p;
}

// A message, a call that only its own kind counts, or one of a batch.
void Recorder::number_otherwise(const OfrCall& call, LiveGroup& group, const Signature& signature, uint64_t batch,
                                Slot& slot) {
  if (batch) {
    slot.flags = kFlagCoalesced;
    if (group.batch != batch) {
      group.batch = batch;
      group.batch_coll = group.batch_p2p = 0;
    }
  }
  if (call.kind == kCollective) {
    if (group.batch_coll) {
      slot.coll_seq = group.batch_coll;
    } else {
      slot.coll_seq = group.batch_coll = group.coll + 1;
      group.coll += signature.step;
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
}

// The call cannot be recorded. The numbers must still agree with PyTorch's.
void Recorder::give_up(const OfrCall& call) {
  std::lock_guard<Lock> guard(core_->lock);
  if (!on || !core_->ring) return;
  LiveGroup* group = find_group({call.group, call.group_length});
  if (!group) return;
  ++group->op;
  ++(call.kind == kCollective ? group->coll : call.kind == kP2P ? group->p2p : group->monitored);
  core_->ring->count(Ring::kDropped, 1);
}

void Recorder::store_signature(const OfrCall& call, const Signature& signature) {
  std::lock_guard<Lock> guard(core_->lock);
  if (!core_->ring) return;
  if (signatures_.size() >= kMaxSignatures || signature_generation_ != core_->ring->generation()) {
    for (auto& entry : groups_) entry.second->signatures.clear();
    signatures_.clear();
    ++signature_epoch_;
    recent_->forget();
    signature_generation_ = core_->ring->generation();
  }
  LiveGroup* group = find_group({call.group, call.group_length});
  if (!group) return;
  signatures_.push_back(signature);
  group->signatures.set(call.key, call.key_words, static_cast<int64_t>(signatures_.size() - 1));
}

void Recorder::store_site(const SiteKey& key, uint32_t ref, uint32_t generation) {
  std::lock_guard<Lock> guard(core_->lock);
  if (!core_->ring || generation != core_->ring->generation()) return;
  if (site_generation_ != generation || sites_.size() >= kMaxSites) {
    sites_.clear();
    recent_->forget();
    site_generation_ = generation;
  }
  sites_.set(key.words, key.size, ref);
}

bool Recorder::set_library(const void* code, bool is_library) {
  std::lock_guard<Lock> guard(core_->lock);
  bool room = codes_.size() < kMaxCodes;
  if (!room) {
    // Their addresses may be used again, so a later key must not equal an earlier one.
    codes_.clear();
    sites_.clear();
    recent_->forget();
  }
  codes_.set(code, is_library ? CodeTable::kLibrary : CodeTable::kUser, ofr_code_first(code));
  return room;
}

void Recorder::walk(const void* thread, SiteKey* site) {
  std::lock_guard<Lock> guard(core_->lock);
  walk_locked(thread ? ofr_frame_first(thread) : nullptr, site);
}

void Recorder::walk_locked(const void* frame, SiteKey* site) {
  site->size = 0;
  site->frame_count = 0;
  site->found = false;
  site->unknown = nullptr;
  uint32_t inner = 0, walked = 0;
  bool are_shown = true;
  OfrFrame read;
  while (frame) {
    frame = ofr_frame_read(frame, &read);
    if (walked < std::size(site->frames)) site->frames[walked] = read;
    ++walked;
    const CodeTable::Item found = codes_.find(read.code);
    if (found.kind == CodeTable::kNew) {  // also of a caller: it must live as long as the key
      site->unknown = read.code;
      return;
    }
    if (read.position < found.first) {
      are_shown = false;
      if (!read.is_generator) continue;  // Python does not show it
    }
    if (!site->found && found.kind == CodeTable::kLibrary) {
      if (++inner == SiteKey::kMaxInner) return;
      continue;
    }
    site->found = true;
    site->words[site->size++] = reinterpret_cast<uintptr_t>(read.code);
    site->words[site->size++] = static_cast<uint64_t>(read.position);
    if (site->size == std::size(site->words)) break;
  }
  if (!site->found || !are_shown || walked > std::size(site->frames)) return;
  site->frame_count = walked;
  site->are_all = !frame;
}

OFR_HOT void Recorder::end(const OfrPending& pending, uint32_t state, int64_t ended_ns) {
  if (!on) return;
  std::lock_guard<Lock> guard(core_->lock);
  if (on && core_->ring)
    core_->ring->complete(pending.ticket, pending.row, pending.group_index, pending.sequence, state, ended_ns);
}

void Recorder::wait(uint64_t ticket, int64_t waited_ns) {
  if (!on) return;
  std::lock_guard<Lock> guard(core_->lock);
  if (on && core_->ring) core_->ring->wait(ticket, waited_ns);
}

void Recorder::no_future(const OfrEnding& ending) {
  std::lock_guard<Lock> guard(core_->lock);
  if (ending.epoch != signature_epoch_ || ending.slot >= signatures_.size()) return;
  signatures_[ending.slot].has_no_future = true;
  recent_->forget();
}

void Recorder::failed() {
  static std::atomic<bool> has_warned{false};
  if (!has_warned.exchange(true)) std::fputs(kFailed, stderr);
  std::lock_guard<Lock> guard(core_->lock);
  if (on && core_->ring) core_->ring->count(Ring::kHookErrors, 1);
}

void Recorder::add_group(const std::string& name) {
  std::lock_guard<Lock> guard(core_->lock);
  auto group = std::make_unique<LiveGroup>();
  group->name = name;
  std::string_view key = group->name;
  recent_->forget();
  groups_.erase(key);
  groups_.emplace(key, std::move(group));
}

void Recorder::set_index(const std::string& name, int64_t index) {
  std::lock_guard<Lock> guard(core_->lock);
  LiveGroup* group = find_group(name);
  if (!group || !core_->ring) return;
  recent_->forget();
  if (group->index >= 0 && group->index != index) {  // it has other numbers now: group_recorder.py, `renumber`
    core_->ring->remove_group(group->index);
    group->signatures.clear();
  }
  group->ring = core_->ring->group(index);
  group->index = group->ring ? index : -1;
}

void Recorder::remove_group(const std::string& name) {
  std::lock_guard<Lock> guard(core_->lock);
  auto found = groups_.find(name);
  if (found == groups_.end()) return;
  recent_->forget();
  if (core_->ring && found->second->index >= 0) core_->ring->remove_group(found->second->index);
  groups_.erase(found);
}

void Recorder::close() {
  on = 0;
  std::lock_guard<Lock> guard(core_->lock);
  batches_ = nullptr;
  recent_->forget();
  groups_.clear();
  signatures_.clear();
  ++signature_epoch_;
  sites_.clear();
  codes_.clear();
}

}  // namespace otel_fr
