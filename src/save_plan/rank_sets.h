// RankSets: numbers the sets of ranks that hold values under common keys. Set 0 is all ranks. A later save compares the
// values of each set by one number in the vote, so only the first kRankSetsMax sets have a number. One thread at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "core/mixed_number.h"

namespace cairn::save_plan {

inline constexpr std::size_t kRankSetsMax = 32;

// The ranks that hold a key. Ranks are added in ascending order.
class KeyHolders {
 public:
  // False if the rank was added before.
  bool add(std::size_t rank) {
    if (count_ != 0 && last_ == rank) return false;
    last_ = rank;
    ++count_;
    sum_ += mixed_number(rank + 1);
    return true;
  }
  std::size_t count() const { return count_; }
  std::uint64_t sum() const { return sum_; }

 private:
  std::uint64_t sum_ = 0;  // of hashes: equal for equal sets
  std::size_t count_ = 0;
  std::size_t last_ = 0;
};

class RankSets {
 public:
  explicit RankSets(std::size_t rank_count) : rank_count_(rank_count) {}

  // Nullopt for the set of a single rank, and for a set without a number.
  std::optional<std::uint32_t> number_of(const KeyHolders& holders) {
    if (holders.count() < 2) return std::nullopt;
    if (holders.count() == rank_count_) return 0;
    const auto known = numbers_.find(holders.sum());
    if (known != numbers_.end()) return known->second;
    if (numbers_.size() + 1 == kRankSetsMax) return std::nullopt;
    const auto number = static_cast<std::uint32_t>(numbers_.size() + 1);
    numbers_.emplace(holders.sum(), number);
    return number;
  }

 private:
  std::size_t rank_count_;
  std::unordered_map<std::uint64_t, std::uint32_t> numbers_;  // by KeyHolders::sum()
};

}  // namespace cairn::save_plan
