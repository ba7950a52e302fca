#include "ring.hpp"

#include <cstddef>
#include <cstring>

#include "crc32.hpp"

namespace otel_fr {
namespace {

// otel_fr/ring/layout.py
constexpr uint64_t kWordHead = 128, kWordTail = 129, kWordGeneration = 130, kWordUsed = 131, kWordUntracked = 132;
constexpr uint64_t kStatusCounters = 16;
constexpr uint64_t kRowWords = 8, kSlotSize = 96, kDefinitionSize = 16, kHalfStart = 8;
constexpr uint32_t kGroupDefinition = 1;
enum Row { kRowGroup, kRowEnqueued, kRowCompleted, kRowP2P, kRowIssued, kRowEnded, kRowLastIssue, kRowLastEnd };

static_assert(sizeof(Slot) == kSlotSize, "a slot has no padding");
constexpr size_t kBodySize = offsetof(Slot, crc);
constexpr uint64_t kWaitedWord = offsetof(Slot, waited) / 8, kEndedWord = offsetof(Slot, ended) / 8;

struct DefinitionHeader {
  uint32_t length, generation, kind, crc;
};

}  // namespace

Ring::Ring(uint8_t* base, const Layout& layout)
    : base_(base), words_(reinterpret_cast<uint64_t*>(base)), layout_(layout) {
  for (uint64_t row = layout.rows; row > 0; --row) free_rows_.push_back(static_cast<uint32_t>(row));
  store(kWordTail, 1);
  start_generation(1);
}

// Words that a reader may read at any time are written with one store each. `release` makes earlier stores visible first.
void Ring::store(uint64_t word, uint64_t value) { __atomic_store_n(words_ + word, value, __ATOMIC_RELEASE); }

void Ring::put(uint64_t offset, const void* data, size_t size) { std::memcpy(base_ + offset, data, size); }

void Ring::count(int counter, uint64_t n) {
  __atomic_fetch_add(words_ + (layout_.status + kStatusCounters) / 8 + counter, n, __ATOMIC_RELAXED);
}

int64_t Ring::add_group(std::string payload, std::string shortened) {
  if (payload == shortened) count(kTruncated, 1);
  int64_t index = next_group_++;
  RingGroup& group = groups_[index];
  group.payload = std::move(payload);
  group.shortened = std::move(shortened);
  if (!free_rows_.empty()) {
    group.row = free_rows_.back();
    free_rows_.pop_back();
    // The row's group is written last, so that a reader never sees it with the numbers of the earlier group.
    for (uint64_t word = kRowEnqueued; word < kRowWords; ++word) store(row_word(group.row) + word, 0);
  } else {
    store(kWordUntracked, words_[kWordUntracked] + 1);
  }
  define_group(group);
  return index;
}

void Ring::remove_group(int64_t index) {
  auto found = groups_.find(index);
  if (found == groups_.end()) return;
  if (uint32_t row = found->second.row) {
    store(row_word(row) + kRowGroup, 0);
    free_rows_.push_back(row);
  } else {
    store(kWordUntracked, words_[kWordUntracked] - 1);
  }
  groups_.erase(found);
}

RingGroup* Ring::group(int64_t index) {
  auto found = groups_.find(index);
  return found == groups_.end() ? nullptr : &found->second;
}

void Ring::define_group(RingGroup& group) {
  if (!fits(group.payload.size())) flip();
  // A new generation defines every group that has a row, including this one.
  if (!group.ref) write_group(group, group.payload);
}

void Ring::write_group(RingGroup& group, const std::string& payload) {
  group.ref = write(kGroupDefinition, payload.data(), payload.size());
  if (group.row) store(row_word(group.row) + kRowGroup, uint64_t{generation_} << 32 | group.ref);
}

uint64_t Ring::row_word(uint32_t row) const { return layout_.progress / 8 + uint64_t{row - 1} * kRowWords; }

bool Ring::fits(size_t size) const { return used_ + kDefinitionSize + size <= layout_.half_size; }

uint32_t Ring::define(uint32_t kind, const void* payload, size_t size) {
  if (!fits(size)) flip();
  return write(kind, payload, size);
}

uint32_t Ring::write(uint32_t kind, const void* payload, size_t size) {
  DefinitionHeader header{static_cast<uint32_t>(size), generation_, kind, 0};
  header.crc = crc32(payload, size, crc32(&header, 12));
  uint64_t offset = used_;
  put(half_ + offset, &header, kDefinitionSize);
  put(half_ + offset + kDefinitionSize, payload, size);
  used_ = offset + ((kDefinitionSize + size + 7) & ~uint64_t{7});
  store(kWordUsed, used_);
  return static_cast<uint32_t>(offset / 8);
}

void Ring::flip() {
  store(kWordTail, generation_first_);
  generation_first_ = head_ + 1;
  for (auto& entry : groups_) entry.second.ref = 0;
  start_generation(generation_ + 1);
  // Past an eighth of the half, groups are written in short form. Then all groups with rows leave room for the largest other
  // definitions.
  uint64_t room = layout_.half_size / 8;
  for (auto& entry : groups_) {
    RingGroup& group = entry.second;
    if (!group.row) continue;
    bool full = used_ + group.payload.size() <= room;
    if (!full) count(kTruncated, 1);
    write_group(group, full ? group.payload : group.shortened);
  }
  count(kFlips, 1);
}

void Ring::start_generation(uint32_t generation) {
  generation_ = generation;
  half_ = layout_.definitions + (generation & 1) * layout_.half_size;
  used_ = kHalfStart;
  store(half_ / 8, generation);
  store(kWordUsed, kHalfStart);
  store(kWordGeneration, generation);
}

uint64_t Ring::append(RingGroup& group, Slot slot) {
  if (slot.generation != generation_ || !has_reference(group, slot.generation)) return kStale;
  slot.ticket = head_ + 1;
  slot.group = group.ref;
  slot.crc = crc32(&slot, kBodySize);
  std::memcpy(words_ + slot_word(slot.ticket), &slot, kSlotSize);
  head_ = slot.ticket;
  store(kWordHead, head_);
  if (group.row) {
    uint64_t row = row_word(group.row);
    if (slot.kind == kCollective) store(row + kRowEnqueued, slot.coll_seq);
    if (slot.kind == kP2P) store(row + kRowP2P, slot.p2p_seq);
    store(row + kRowIssued, words_[row + kRowIssued] + 1);
    store(row + kRowLastIssue, static_cast<uint64_t>(slot.issued_ns));
  }
  return head_;
}

bool Ring::is_there(uint64_t ticket) const { return head_ - ticket < layout_.capacity; }

uint64_t Ring::slot_word(uint64_t ticket) const {
  return layout_.slots_start / 8 + ticket % layout_.slots * (kSlotSize / 8);
}

void Ring::complete(uint64_t ticket, int64_t group_index, uint64_t coll_seq, uint32_t state, int64_t ended_ns) {
  if (is_there(ticket)) store(slot_word(ticket) + kEndedWord, static_cast<uint64_t>(ended_ns) << 2 | state);
  const RingGroup* found = group(group_index);
  if (!found || !found->row) return;
  uint64_t row = row_word(found->row);
  store(row + kRowEnded, words_[row + kRowEnded] + 1);
  if (ended_ns) store(row + kRowLastEnd, static_cast<uint64_t>(ended_ns));
  if (state == 1 && coll_seq > words_[row + kRowCompleted]) store(row + kRowCompleted, coll_seq);
}

void Ring::wait(uint64_t ticket, int64_t waited_ns) {
  if (is_there(ticket)) store(slot_word(ticket) + kWaitedWord, static_cast<uint64_t>(waited_ns));
}

}  // namespace otel_fr
