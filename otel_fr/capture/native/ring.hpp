// The writer of a ring file (docs/reference/ring-format.md). It stores in the same order as otel_fr/ring/writer.py.
//
// Not thread safe: the caller holds a lock. Nothing here waits or calls the operating system.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace otel_fr {

enum Kind : uint32_t { kCollective = 0, kP2P = 1, kMonitored = 2 };

struct Layout {
  uint64_t capacity, slots, half_size, status, progress, rows, definitions, slots_start, file_size;
};

// A call as stored in the file (docs/reference/ring-format.md). `append` sets ticket, group and crc; `wait` and `complete` set
// waited and ended.
struct Slot {
  uint64_t ticket;
  int64_t issued_ns;
  uint64_t coll_seq, p2p_seq, op_id;
  uint32_t group, signature, site, generation, pair_index;
  uint8_t kind, flags;
  uint16_t zero;
  uint32_t timeout_ms, thread, crc, pad;
  int64_t waited;
  uint64_t ended;
};

// A timeout as stored in a slot.
inline uint32_t slot_timeout(uint64_t ms) { return static_cast<uint32_t>(ms > UINT32_MAX ? UINT32_MAX : ms); }

struct RingGroup {
  uint32_t ref = 0;  // its reference in this generation; 0: none yet
  uint32_t row = 0;  // number of its progress row, from 1; 0: none
  std::string payload, shortened;
};

class Ring {
 public:
  static constexpr int kFlips = 3, kTruncated = 2, kDropped = 1, kHookErrors = 0;  // COUNTERS of layout.py
  static constexpr uint64_t kStale = 0;

  // `base`: the mapped file; all zeros except the header. Starts the first generation.
  Ring(uint8_t* base, const Layout& layout);

  uint64_t head() const { return head_; }
  uint32_t generation() const { return generation_; }

  // `payload`: the group's definition. If it equals `shortened`, it counts as truncated.
  int64_t add_group(std::string payload, std::string shortened);
  void remove_group(int64_t index);
  RingGroup* group(int64_t index);

  // Returns the reference of a new definition. May start a generation, which makes all earlier references stale.
  uint32_t define(uint32_t kind, const void* payload, size_t size);

  // Gives the group a reference if it has none. False: this has started a new generation.
  bool has_reference(RingGroup& group, uint32_t generation) {
    if (!group.ref) define_group(group);
    return generation == generation_;
  }

  // Returns the call's ticket, or `kStale` if its references belong to an earlier generation.
  uint64_t append(RingGroup& group, Slot slot);
  // If the call's record was overwritten, only the group's numbers change.
  void complete(uint64_t ticket, int64_t group_index, uint64_t coll_seq, uint32_t state, int64_t ended_ns);
  void wait(uint64_t ticket, int64_t waited_ns);
  void count(int counter, uint64_t n);

 private:
  void store(uint64_t word, uint64_t value);
  void put(uint64_t offset, const void* data, size_t size);
  bool fits(size_t size) const;
  bool is_there(uint64_t ticket) const;  // true if the record is not overwritten
  uint64_t slot_word(uint64_t ticket) const;  // first word of its slot
  uint32_t write(uint32_t kind, const void* payload, size_t size);
  void write_group(RingGroup& group, const std::string& payload);
  void define_group(RingGroup& group);
  void start_generation(uint32_t generation);
  void flip();

  uint64_t row_word(uint32_t row) const;  // its first word

  uint8_t* base_;
  uint64_t* words_;
  Layout layout_;
  uint64_t head_ = 0;  // ticket of the last record
  uint32_t generation_ = 1;
  uint64_t half_ = 0, used_ = 0, generation_first_ = 1;
  int64_t next_group_ = 0;
  std::map<int64_t, RingGroup> groups_;  // in the order of their creation
  std::vector<uint32_t> free_rows_;
};

}  // namespace otel_fr
