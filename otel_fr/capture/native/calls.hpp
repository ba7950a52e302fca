// What is known of groups and of calls, and what is kept of the calls of late.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "api.h"
#include "frames.h"
#include "ring.hpp"
#include "tables.hpp"

namespace otel_fr {

// What calls with equal arguments in one group have in common: capture/signatures.py.
struct Signature {
  uint32_t ref = 0, generation = 0, mode = 0, step = 0, op_step = 0;
  uint64_t timeout_ms = 0;
  int64_t peer = -1, tag = 0;
  bool coalesces = false, has_no_future = false;
};

struct Pair {
  int64_t code, peer, tag;
  bool operator==(const Pair& o) const { return code == o.code && peer == o.peer && tag == o.tag; }
};

struct PairHash {
  size_t operator()(const Pair& p) const { return mixed(mixed(mixed(0, p.code), p.peer), p.tag); }
};

// How many calls of each pair there were: capture/groups.py, `next_pair_index`.
class Pairs {
 public:
  uint64_t next(const Pair& pair);

 private:
  std::unordered_map<Pair, uint64_t, PairHash> counts_;
  std::deque<Pair> order_;  // of their first use
};

// A live process group and its counters: capture/groups.py.
struct alignas(64) LiveGroup {
  std::string name;
  RingGroup* ring = nullptr;
  uint64_t coll = 0, op = 0, p2p = 0, monitored = 0;
  int64_t index = -1;  // in the ring; -1: not defined yet
  uint64_t batch = 0, batch_coll = 0, batch_p2p = 0;  // the last coalesced batch, and its numbers; 0: none yet
  KeyTable signatures;
  Pairs pairs;
};

// Where a call was made: code objects and positions of the innermost user frame and of its callers.
struct SiteKey {
  static constexpr size_t kKeyed = 4, kMaxInner = 64;  // capture/sites.py
  uint64_t words[2 * kKeyed];
  size_t size = 0;
  // The frames that were walked; none, if there were more, or some that Python does not show. Whether there are no others.
  static constexpr size_t kMaxFrames = 40;
  OfrFrame frames[kMaxFrames];
  uint32_t frame_count = 0;
  bool are_all = false;
  bool found = false;
  const void* unknown = nullptr;  // a code object that must be classified first
};

// Calls that were recorded lately, each with all that was looked up for it, in consecutive cache lines: the tables of groups,
// signatures, code objects, sites have dozens of lines, which are no longer in the cache when a step issues its next call.
class alignas(64) RecentCalls {
 public:
  struct alignas(64) Entry {
    LiveGroup* group = nullptr;
    OfrBytes next[2]{};  // the calls that were found after this one: the last time, and before that another one
    uint64_t call_hash = 0;
    uint32_t key_words = 0, site_words = 0, frame_count = 0, are_all = 0;
    uint32_t number = 0, site = 0;  // of the signature; reference of the site
    Signature signature;
    uint64_t signature_epoch = 0;
    uint64_t hash = 0, epoch = 0;  // of the call and its frames
    uint64_t words[16];            // the key, then the site
    OfrPlace frames[SiteKey::kMaxFrames];

    OfrBytes bytes() const { return {this, sizeof(Entry) - sizeof(frames) + frame_count * sizeof(OfrPlace)}; }
  };

  static uint64_t hash_of(const OfrCall& call) {
    uint64_t sum = call.group_length << 8 | (call.group_length ? call.group[call.group_length - 1] : 0);
    for (size_t i = 0; i < call.key_words; ++i) sum = mixed(sum, call.key[i]);
    return sum;
  }

  // One of the two calls that followed the one before when that was made earlier, or the call with these arguments that was
  // found last by them: whichever has these arguments, and was made from these frames. Null: none of them.
  // What is found so needs no walk to its call site, which looks up each code object on the way.
  const Entry* guess(const OfrCall& call, bool with_site, const void* frame) {
    for (const OfrBytes& next : next_) {
      auto* entry = static_cast<Entry*>(const_cast<void*>(next.at));
      if (entry && is_of(*entry, call) && is_from(*entry, with_site, frame)) return note(*entry);
    }
    Entry* last = last_[hash_of(call) % kCount];
    return last && is_of(*last, call) && is_from(*last, with_site, frame) ? note(*last) : nullptr;
  }

  // What is kept of the calls that will probably be found next, of size 0 where that is not known.
  const OfrBytes& next(size_t number) const { return next_[number]; }

  // `site`: null: none is recorded. Null: there is no such call, or it cannot be kept.
  const Entry* find(const OfrCall& call, uint64_t call_hash, const SiteKey* site);
  void add(const OfrCall& call, uint64_t call_hash, const SiteKey* site, const Entry& found);
  // All of them. For whoever changes anything that an entry has or was found by.
  void forget();

 private:
  static constexpr size_t kCount = 256;
  static constexpr uint32_t kNoSite = 0xFFFFFFFF;

  static uint64_t hash_of(uint64_t call_hash, const SiteKey* site);
  Entry& first_place(uint64_t hash) { return entries_[hash % kCount]; }
  Entry& second_place(uint64_t hash) { return entries_[(hash >> 32) % kCount]; }
  static bool are_equal(const uint64_t* one, const uint64_t* other, size_t words) {
    for (size_t i = 0; i < words; ++i)
      if (one[i] != other[i]) return false;
    return true;
  }
  static bool is_of(const Entry& entry, const OfrCall& call) {
    const std::string& name = entry.group->name;
    if (entry.key_words != call.key_words || name.size() != call.group_length) return false;
    for (size_t i = 0; i < call.group_length; ++i)
      if (name[i] != call.group[i]) return false;
    return are_equal(entry.words, call.key, call.key_words);
  }
  static bool is_from(Entry& entry, bool with_site, const void* frame) {
    if (!with_site) return entry.site_words == kNoSite;
    return entry.site_words != kNoSite && entry.frame_count &&
           ofr_frames_are(frame, entry.frames, entry.frame_count, entry.are_all);
  }
  Entry* note(Entry& entry) {
    if (latest_ && next_[0].at != &entry) {
      latest_->next[0] = entry.bytes();
      latest_->next[1] = next_[0];
    }
    latest_ = &entry;
    next_[0] = entry.next[0];
    next_[1] = entry.next[1];
    return &entry;
  }
  void follow(Entry& entry);

  Entry* latest_ = nullptr;  // what was found last, and what followed it before
  OfrBytes next_[2]{};
  uint64_t epoch_ = 1;
  Entry* last_[kCount]{};  // at the place of the hash of the call
  Entry entries_[kCount];  // at one of two places, by the hash of the call and its frames; 240 KiB
};

}  // namespace otel_fr
