// Numbers each call and writes it into the ring, like otel_fr/capture/recorder.py, but without the GIL.
//
// Order of locks: the GIL, then `Core::lock`. No thread that holds `Core::lock` waits for the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "api.h"
#include "calls.hpp"
#include "ring.hpp"

namespace otel_fr {

// A ring and its lock. `ring` is null once it is closed.
struct Core {
  std::mutex lock;
  std::unique_ptr<Ring> ring;
  std::atomic<int64_t> watched{0};  // calls whose end a callback waits for
};

class Recorder;

// Reference of a thread. Generation 0 means that it has none.
struct ThreadRef {
  uint32_t ref = 0, generation = 0;
};

// Functions that need Python. They take the GIL, and are called without the lock. False: the function failed, which was
// counted.
struct Misses {
  virtual ~Misses() = default;
  virtual bool define_group(const OfrCall& call) = 0;
  virtual bool define_signature(const OfrCall& call, Signature* signature) = 0;
  virtual bool define_site(bool of_main, uint32_t* ref, uint32_t* generation) = 0;
  virtual bool define_thread(uint32_t* ref, uint32_t* generation) = 0;
  virtual bool classify(const void* code) = 0;
  virtual bool main_site(SiteKey* site) = 0;
  virtual bool batch(const OfrCall& call, uint64_t* batch) = 0;
};

class Recorder {
 public:
  // `main_thread`: the identity of Python's main thread. `batches`: torch's dict of the groups that coalesce. It lives as long
  // as `misses` refers to it. The caller holds the GIL.
  Recorder(std::shared_ptr<Core> core, std::unique_ptr<Misses> misses, unsigned long main_thread, PyObject* batches);

  std::atomic<uint32_t> on{1};

  // Called by the kernel; see api.h.
  int begin(const OfrCall& call, OfrPending* pending);
  void end(const OfrPending& pending, uint32_t state, int64_t ended_ns);
  void wait(uint64_t ticket, int64_t waited_ns);
  void failed();

  // Called by Python, with the GIL.
  void add_group(const std::string& name);
  void set_index(const std::string& name, int64_t index);
  void remove_group(const std::string& name);
  // Classifies a code object. False: there were too many, so all others were forgotten first.
  bool set_library(const void* code, bool is_library);
  void walk(const void* thread, SiteKey* site);
  Core& core() { return *core_; }
  void close();

 private:
  enum class Miss { kNone, kIgnored, kGroup, kSignature, kSite, kMainSite, kThread, kCode, kBatch };
  struct Attempt;

  LiveGroup* find_group(std::string_view name);
  const void* own_frames() const;
  const ThreadRef* own_thread() const;
  bool in_batch() const;
  Miss look_up(const OfrCall& call, Attempt& attempt);
  bool resolve(Miss miss, const OfrCall& call, Attempt& attempt);
  bool record(const OfrCall& call, const Attempt& attempt, OfrPending* pending);
  void number(const OfrCall& call, LiveGroup& group, const Signature& signature, uint64_t batch, Slot& slot);
  void give_up(const OfrCall& call);
  void store_signature(const OfrCall& call, const Signature& signature);
  void store_site(const SiteKey& key, uint32_t ref, uint32_t generation);
  void walk_locked(const void* frame, SiteKey* site);

  const std::shared_ptr<Core> core_;
  PyObject* batches_;  // torch's dict of the groups that coalesce; null once the recorder is closed
  const unsigned long main_thread_;
  const std::unique_ptr<Misses> misses_;
  std::unordered_map<const void*, bool> codes_;  // code object: true if it is not the user's
  std::unordered_map<std::string_view, std::unique_ptr<LiveGroup>> groups_;  // keys: the groups' own names
  size_t signature_count_ = 0;  // number of signatures of all groups
  uint32_t signature_generation_ = 0, site_generation_ = 0;
  std::map<decltype(SiteKey::words), uint32_t> sites_;
};

// Sets the recorder that the kernels call, or null. Returns the table of functions that the kernels use.
void set_active(Recorder* recorder);
const OfrApi* api();

}  // namespace otel_fr
