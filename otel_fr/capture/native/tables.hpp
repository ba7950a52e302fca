// Hash tables of the recorder: nothing is removed from them but everything at once.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace otel_fr {

inline uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}

// Keys are rows of words. The whole key is compared, so that equal hashes of different keys do no harm.
class KeyTable {
 public:
  static constexpr int64_t kNone = -1;

  int64_t find(const uint64_t* key, size_t words) const {
    if (buckets_.empty()) return kNone;
    uint64_t hash = hash_of(key, words);
    for (size_t at = hash & mask_;; at = (at + 1) & mask_) {
      uint32_t number = buckets_[at];
      if (!number) return kNone;
      const Entry& entry = entries_[number - 1];
      if (entry.hash == hash && entry.words == words && !std::memcmp(&keys_[entry.start], key, words * 8))
        return entry.value;
    }
  }

  // Adds a key, or replaces its value.
  void set(const uint64_t* key, size_t words, int64_t value) {
    if (entries_.size() * 2 >= buckets_.size()) grow();
    uint64_t hash = hash_of(key, words);
    size_t at = hash & mask_;
    for (; buckets_[at]; at = (at + 1) & mask_) {
      Entry& entry = entries_[buckets_[at] - 1];
      if (entry.hash == hash && entry.words == words && !std::memcmp(&keys_[entry.start], key, words * 8)) {
        entry.value = value;
        return;
      }
    }
    entries_.push_back({hash, keys_.size(), words, value});
    keys_.insert(keys_.end(), key, key + words);
    keys_.push_back(0);  // an empty key has an address, too
    buckets_[at] = static_cast<uint32_t>(entries_.size());
  }

  size_t size() const { return entries_.size(); }

  void clear() {
    entries_.clear();
    keys_.clear();
    buckets_.clear();
  }

 private:
  struct Entry {
    uint64_t hash;
    size_t start, words;
    int64_t value;
  };

  static uint64_t hash_of(const uint64_t* key, size_t words) {
    uint64_t hash = words;
    for (size_t i = 0; i < words; ++i) hash = mixed(hash, key[i]);
    return hash;
  }

  void grow() {
    buckets_.assign(buckets_.empty() ? 32 : buckets_.size() * 2, 0);
    mask_ = buckets_.size() - 1;
    for (size_t number = 0; number < entries_.size(); ++number) {
      size_t at = entries_[number].hash & mask_;
      while (buckets_[at]) at = (at + 1) & mask_;
      buckets_[at] = static_cast<uint32_t>(number + 1);
    }
  }

  std::vector<Entry> entries_;
  std::vector<uint64_t> keys_;
  std::vector<uint32_t> buckets_;
  size_t mask_ = 0;
};

// Code objects: whether each is of a library, and `ofr_code_first` of it.
class CodeTable {
 public:
  enum Class : uint8_t { kNew = 0, kUser = 1, kLibrary = 2 };

  struct Item {
    const void* code = nullptr;
    int first = 0;
    Class kind = kNew;
  };

  Item find(const void* code) const {
    if (slots_.empty()) return {};
    for (size_t at = place(code);; at = (at + 1) & mask_)
      if (slots_[at].code == code || !slots_[at].code) return slots_[at];
  }

  void set(const void* code, Class kind, int first) {
    if (count_ * 2 >= slots_.size()) grow();
    size_t at = place(code);
    while (slots_[at].code && slots_[at].code != code) at = (at + 1) & mask_;
    if (!slots_[at].code) ++count_;
    slots_[at] = {code, first, kind};
  }

  size_t size() const { return count_; }

  void clear() {
    slots_.clear();
    count_ = 0;
  }

 private:
  size_t place(const void* code) const { return mixed(0, reinterpret_cast<uintptr_t>(code) >> 4) & mask_; }

  void grow() {
    std::vector<Item> old = std::move(slots_);
    slots_.assign(old.empty() ? 256 : old.size() * 2, Item{});
    mask_ = slots_.size() - 1;
    for (const Item& item : old) {
      if (!item.code) continue;
      size_t at = place(item.code);
      while (slots_[at].code) at = (at + 1) & mask_;
      slots_[at] = item;
    }
  }

  std::vector<Item> slots_;
  size_t count_ = 0, mask_ = 0;
};

}  // namespace otel_fr
