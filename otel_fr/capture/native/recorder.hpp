// Numbers each call and writes it into the ring; does what otel_fr/capture/recorder.py does, without the GIL.
//
// Order of locks: the GIL, then `Core::mutex`. Nobody who holds the mutex waits for the GIL.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "api.h"
#include "calls.hpp"
#include "ring.hpp"
#include "tables.hpp"

namespace otel_fr {

// A ring and its lock. `ring` is empty once it is closed.
//
// What threads of the backend write when a call ends shares no cache line with what only the training thread uses.
struct alignas(64) Core {
  std::mutex mutex;
  std::atomic<int64_t> watched{0};  // calls whose end a callback waits for
  std::optional<Ring> ring;
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

class alignas(64) Recorder {
 public:
  // `main_thread`: the identity of Python's main thread.
  Recorder(std::shared_ptr<Core> core, std::unique_ptr<Misses> misses, unsigned long main_thread);

  std::atomic<uint32_t> on{1};
  std::atomic<bool> with_sites{true};

  // Of the kernel; see api.h.
  int begin(const OfrCall& call, OfrPending* pending, OfrEnding* ending);
  void end(const OfrPending& pending, uint32_t state, int64_t ended_ns);
  void wait(uint64_t ticket, int64_t waited_ns);
  void no_future(const OfrEnding& ending);
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
  Miss look_up_parts(const OfrCall& call, Attempt& attempt, bool with_site);
  bool resolve(Miss miss, const OfrCall& call, Attempt& attempt);
  int record(const OfrCall& call, const Attempt& attempt, OfrPending* pending, OfrEnding* ending);
  Slot numbered(const OfrCall& call, LiveGroup& group, const Signature& signature, uint64_t batch);
  void give_up(const OfrCall& call);
  void store_signature(const OfrCall& call, const Signature& signature);
  void store_site(const SiteKey& key, uint32_t ref, uint32_t generation);
  void walk_locked(const void* thread, SiteKey* site);

  const std::shared_ptr<Core> core_;
  const std::unique_ptr<Misses> misses_;
  const unsigned long main_thread_;
  RecentCalls recent_;
  CodeTable codes_;
  std::unordered_map<std::string_view, std::unique_ptr<LiveGroup>> groups_;  // keys: the groups' own names
  std::deque<Signature> signatures_;
  uint64_t signature_epoch_ = 0;
  uint32_t signature_generation_ = 0, site_generation_ = 0;
  KeyTable sites_;
};

// The recorder that the kernels call, or null; the table of functions that they get.
void set_active(Recorder* recorder);
const OfrApi* api();

// Where the next call of this group will be written, for `OfrNext`.
void set_next(const Core& core, const void* recorder, const Ring& ring, const RingGroup& group);

}  // namespace otel_fr
