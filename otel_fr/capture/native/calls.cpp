#include "calls.hpp"

namespace otel_fr {
namespace {

constexpr size_t kMaxPairs = 65536;  // as in Python
constexpr uint64_t kUnpaired = 0xFFFFFFFF;  // ring/layout.py

}  // namespace

uint64_t Pairs::next(const Pair& pair) {
  const auto [receives, peer, tag] = pair;
  if (receives && peer >= 0 && counts_.count({receives, kAny, tag})) return kUnpaired;
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

}  // namespace otel_fr
