// State of groups and calls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>

namespace otel_fr {

// (1 if it receives, peer or kAny, tag); see `CallKind.pair` in capture/definitions.py.
using Pair = std::array<int64_t, 3>;
constexpr int64_t kAny = -1;

// What calls with equal arguments in one group have in common; see `CallKind` in capture/definitions.py.
struct Signature {
  uint32_t ref = 0, generation = 0, mode = 0, step = 0, op_step = 0;
  uint64_t timeout_ms = 0;
  Pair pair{};
  bool coalesces = false;
};

// Number of calls of each pair so far; see `next_pair_index` in capture/groups.py.
class Pairs {
 public:
  uint64_t next(const Pair& pair);

 private:
  std::map<Pair, uint64_t> counts_;
  std::deque<Pair> order_;  // pairs in the order of their first use
};

// A live process group and its counters; see `LiveGroup` in capture/groups.py.
struct LiveGroup {
  std::string name;
  uint64_t coll = 0, op = 0, p2p = 0, monitored = 0;
  int64_t index = -1;  // its index in the ring; -1: not defined yet
  uint64_t batch = 0, batch_coll = 0, batch_p2p = 0;  // the last coalesced batch and its numbers; 0: none yet
  std::map<std::string, Signature, std::less<>> signatures;  // keys: the bytes of the calls' keys
  Pairs pairs;
};

// Where a call was made: code objects and positions of the innermost user frame and of its callers.
struct SiteKey {
  static constexpr size_t kKeyed = 4, kMaxInner = 64;  // capture/sites.py
  std::array<uint64_t, 2 * kKeyed> words{};
  size_t size = 0;  // number of words in use; 0: there is no user code
  const void* unknown = nullptr;  // a code object that must be classified first
};

}  // namespace otel_fr
