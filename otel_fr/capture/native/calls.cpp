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

const RecentCalls::Entry* RecentCalls::find(const OfrCall& call, const SiteKey* site, uint64_t* hash) const {
  uint64_t sum = call.group_length << 8 | (call.group_length ? call.group[call.group_length - 1] : 0);
  for (size_t i = 0; i < call.key_words; ++i) sum = mixed(sum, call.key[i]);
  const size_t site_words = site ? site->size : 0;
  for (size_t i = 0; i < site_words; ++i) sum = mixed(sum, site->words[i]);
  *hash = sum;
  const Entry& entry = entries_[sum % kCount];
  bool equal = entry.hash == sum && entry.epoch == epoch_ && entry.key_words == call.key_words &&
               entry.site_words == (site ? site_words : kNoSite) &&
               !std::memcmp(entry.words, call.key, call.key_words * 8) &&
               !(site_words && std::memcmp(entry.words + call.key_words, site->words, site_words * 8));
  if (!equal) return nullptr;
  const std::string& name = entry.group->name;
  return name.size() == call.group_length && !std::memcmp(name.data(), call.group, name.size()) ? &entry : nullptr;
}

void RecentCalls::add(const OfrCall& call, const SiteKey* site, uint64_t hash, const Entry& found) {
  const size_t site_words = site ? site->size : 0;
  if (call.key_words + site_words > std::size(found.words)) return;
  Entry& entry = entries_[hash % kCount];
  entry = found;
  entry.hash = hash;
  entry.epoch = epoch_;
  entry.key_words = static_cast<uint32_t>(call.key_words);
  entry.site_words = site ? static_cast<uint32_t>(site_words) : kNoSite;
  std::memcpy(entry.words, call.key, call.key_words * 8);
  if (site_words) std::memcpy(entry.words + call.key_words, site->words, site_words * 8);
}

}  // namespace otel_fr
