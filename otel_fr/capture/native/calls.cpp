#include "calls.hpp"

#include <cstring>
#include <iterator>

namespace otel_fr {
namespace {

constexpr size_t kMaxPairs = 65536;  // as in Python

}  // namespace

uint64_t Pairs::next(const Pair& pair) {
  auto found = counts_.find(pair);
  if (found != counts_.end()) return found->second++;
  if (counts_.size() >= kMaxPairs) {
    for (size_t i = 0; i < kMaxPairs / 2; ++i) {
      counts_.erase(order_.front());
      order_.pop_front();
    }
  }
  counts_.emplace(pair, 1);
  order_.push_back(pair);
  return 0;
}

uint64_t RecentCalls::hash_of(uint64_t call_hash, const SiteKey* site) {
  if (!site) return call_hash;
  for (size_t i = 0; i < site->size; ++i) call_hash = mixed(call_hash, site->words[i]);
  for (size_t i = 0; i < site->frame_count; ++i)
    call_hash = mixed(call_hash, reinterpret_cast<uintptr_t>(site->frames[i].code) + site->frames[i].position);
  return call_hash;
}

const RecentCalls::Entry* RecentCalls::find(const OfrCall& call, uint64_t call_hash, const SiteKey* site) {
  const uint64_t hash = hash_of(call_hash, site);
  const size_t site_words = site ? site->size : 0;
  for (Entry* entry : {&first_place(hash), &second_place(hash)}) {
    const bool is_equal = entry->hash == hash && entry->epoch == epoch_ && is_of(*entry, call) &&
                          entry->site_words == (site ? site_words : kNoSite) &&
                          are_equal(entry->words + call.key_words, site ? site->words : nullptr, site_words);
    if (!is_equal) continue;
    follow(*entry);
    return entry;
  }
  return nullptr;
}

void RecentCalls::add(const OfrCall& call, uint64_t call_hash, const SiteKey* site, const Entry& found) {
  const size_t site_words = site ? site->size : 0;
  if (call.key_words + site_words > std::size(found.words)) return;
  const uint64_t hash = hash_of(call_hash, site);
  const bool is_taken = first_place(hash).epoch == epoch_ && second_place(hash).epoch != epoch_;
  Entry& entry = is_taken ? second_place(hash) : first_place(hash);
  entry = found;
  entry.call_hash = call_hash;
  entry.hash = hash;
  entry.epoch = epoch_;
  entry.key_words = static_cast<uint32_t>(call.key_words);
  entry.site_words = site ? static_cast<uint32_t>(site_words) : kNoSite;
  std::memcpy(entry.words, call.key, call.key_words * 8);
  if (site) {
    std::memcpy(entry.words + call.key_words, site->words, site_words * 8);
    for (uint32_t i = 0; i < site->frame_count; ++i) entry.frames[i] = site->frames[i].place;
    entry.frame_count = site->frame_count;
    entry.are_all = site->are_all;
  }
  follow(entry);
}

void RecentCalls::follow(Entry& entry) {
  last_[entry.call_hash % kCount] = &entry;
  note(entry);
}

void RecentCalls::forget() {
  ++epoch_;
  latest_ = nullptr;
  next_[0] = next_[1] = {};
  for (Entry*& last : last_) last = nullptr;
}

}  // namespace otel_fr
