// Numbers each call and writes it into the ring; does what otel_fr/capture/recorder.py does, without the GIL.
//
// Order of locks: the GIL, then `Core::mutex`. Nobody who holds the mutex waits for the GIL.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "api.h"
#include "ring.hpp"
#include "tables.hpp"

namespace otel_fr {

// A ring and its lock. `ring` is null once it is closed.
struct Core {
  std::mutex mutex;
  std::unique_ptr<Ring> ring;
};

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
struct LiveGroup {
  std::string name;
  int64_t index = -1;  // in the ring; -1: not defined yet
  RingGroup* ring = nullptr;
  uint64_t coll = 0, p2p = 0, op = 0, monitored = 0;
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

class Recorder;

// What needs Python: each takes the GIL, and is called without the mutex. False: it failed, and was counted.
struct Misses {
  virtual ~Misses() = default;
  virtual bool define_group(const OfrCall& call) = 0;
  virtual bool define_signature(const OfrCall& call, Signature* signature) = 0;
  virtual bool define_site(bool of_main, uint32_t* ref, uint32_t* generation) = 0;
  virtual bool define_thread(uint32_t* ref, uint32_t* generation) = 0;
  virtual bool classify(const void* code) = 0;
  virtual bool main_site(SiteKey* site) = 0;
  virtual bool batch(const OfrCall& call, uint64_t* batch) = 0;
  virtual bool in_batch() = 0;  // some group coalesces; takes no GIL
};

class Recorder {
 public:
  // `main_thread`: the identity of Python's main thread.
  Recorder(std::shared_ptr<Core> core, std::unique_ptr<Misses> misses, unsigned long main_thread);

  std::atomic<uint32_t> on{1};
  std::atomic<bool> with_sites{true};
  std::atomic<int64_t> watched{0};  // calls whose end a callback waits for

  // Of the kernel; see api.h.
  int begin(const OfrCall& call, OfrPending* pending);
  void end(uint64_t ticket, int64_t group_index, uint64_t sequence, uint32_t state, int64_t ended_ns);
  void wait(uint64_t ticket, int64_t waited_ns);
  void no_future(const OfrPending& pending);
  void failed();

  // Of Python, under the GIL.
  void add_group(const std::string& name);
  void set_index(const std::string& name, int64_t index);
  void remove_group(const std::string& name);
  // Classifies a code object; false: there were so many that all were forgotten first.
  bool set_library(const void* code, bool is_library);
  void walk(const void* thread, SiteKey* site);
  Core& core() { return *core_; }
  void close();

 private:
  enum class Miss { kNone, kIgnored, kGroup, kSignature, kSite, kMainSite, kThread, kCode, kBatch };
  struct Attempt;

  LiveGroup* find_group(std::string_view name);
  Miss look_up(const OfrCall& call, Attempt& attempt);
  bool resolve(Miss miss, const OfrCall& call, Attempt& attempt);
  int record(const OfrCall& call, const Attempt& attempt, OfrPending* pending);
  Slot numbered(const OfrCall& call, LiveGroup& group, const Signature& signature, uint64_t batch);
  void give_up(const OfrCall& call);
  void store_signature(const OfrCall& call, const Signature& signature);
  void store_site(const SiteKey& key, uint32_t ref, uint32_t generation);
  void walk_locked(const void* thread, SiteKey* site);

  std::shared_ptr<Core> core_;
  std::unique_ptr<Misses> misses_;
  const unsigned long main_thread_;
  std::unordered_map<std::string_view, std::unique_ptr<LiveGroup>> groups_;  // keys: the groups' own names
  std::deque<Signature> signatures_;
  uint64_t signature_epoch_ = 0;
  uint32_t signature_generation_ = 0, site_generation_ = 0;
  KeyTable sites_;
  CodeTable codes_;
};

// The recorder that the kernels call, or null; the table of functions that they get.
void set_active(Recorder* recorder);
const OfrApi* api();

}  // namespace otel_fr
