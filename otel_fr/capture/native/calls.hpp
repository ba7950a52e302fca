// What is known of groups and of calls, and what is kept of the calls of late.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "api.h"
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
  int64_t index = -1;  // in the ring; -1: not defined yet
  RingGroup* ring = nullptr;
  uint64_t coll = 0, op = 0, p2p = 0, monitored = 0;
  uint64_t batch = 0, batch_coll = 0, batch_p2p = 0;  // the last coalesced batch, and its numbers; 0: none yet
  KeyTable signatures;
  Pairs pairs;
};

// Where a call was made: code objects and positions of the innermost user frame and of its callers.
struct SiteKey {
  static constexpr size_t kKeyed = 4, kMaxInner = 64;  // capture/sites.py
  uint64_t words[2 * kKeyed];
  size_t size = 0;
  bool found = false;
  const void* unknown = nullptr;  // a code object that must be classified first
};

// Calls that were recorded lately, each with all that was looked up for it, in consecutive cache lines: the tables of groups,
// signatures, sites have a handful of lines each, which are no longer in the cache when a step issues its next call.
class RecentCalls {
 public:
  struct alignas(64) Entry {
    uint64_t hash = 0, epoch = 0;
    LiveGroup* group = nullptr;
    Signature signature;
    uint32_t number = 0, site = 0;  // of the signature; reference of the site
    uint32_t key_words = 0, site_words = 0;
    uint64_t words[16];  // the key, then the site
  };

  // `site`: null: none is recorded. Null: there is no such call, or it cannot be kept.
  const Entry* find(const OfrCall& call, const SiteKey* site, uint64_t* hash) const;
  void add(const OfrCall& call, const SiteKey* site, uint64_t hash, const Entry& found);
  // All of them. For whoever changes anything that an entry has or was found by.
  void forget() { ++epoch_; }

 private:
  static constexpr size_t kCount = 256;  // 64 KiB
  static constexpr uint32_t kNoSite = 0xFFFFFFFF;

  std::vector<Entry> entries_{kCount};  // at the place of their hash
  uint64_t epoch_ = 1;
};

}  // namespace otel_fr
