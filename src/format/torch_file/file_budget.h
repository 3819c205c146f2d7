// FileBudget: one ByteBudget for all values of a file: a few bytes of a file may name one large value under many keys.
//
// Thread-safe. An entry counts once, however often it is read.
#pragma once

#include <cairn/result.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/byte_budget.h"
#include "core/checked.h"
#include "core/seeded_hash.h"

namespace cairn::torch_file {

class FileBudget {
 public:
  explicit FileBudget(std::uint64_t file_bytes) : left_(ByteBudget(file_bytes).left()) {}

  // Calls `read` with a budget of what all other entries leave, and counts what `read` has charged. Returns the
  // result of `read`. kUnsafe, in words about the file, if the other entries have taken what `read` needs.
  template <typename Read>
  auto charged(std::size_t entry, const Read& read) -> decltype(read(std::declval<ByteBudget&>())) {
    std::uint64_t most = 0;
    {
      const std::lock_guard lock(mutex_);
      most = checked_add(left_, cost_of(entry)).value_or(left_);
    }
    ByteBudget budget = ByteBudget::of_bytes(most);
    auto result = read(budget);
    const std::lock_guard lock(mutex_);
    if (!result && result.error().code() == ErrorCode::kUnsafe && spent_ > cost_of(entry)) {
      return Error(ErrorCode::kUnsafe,
                   "the values of the file together would be far larger than the file: many keys name the same "
                   "objects. Select some of the keys")
          .expected("at most " + std::to_string(most) + " bytes more");
    }
    if (result) count(entry, most - budget.left());
    return result;
  }

 private:
  std::uint64_t cost_of(std::size_t entry) const {
    const auto known = costs_.find(entry);
    return known == costs_.end() ? 0 : known->second;
  }
  // Several threads may have read at one time: their sum may exceed what was left.
  void count(std::size_t entry, std::uint64_t bytes) {
    std::uint64_t& cost = costs_[entry];
    if (bytes <= cost) return;
    const std::uint64_t more = bytes - cost;
    cost = bytes;
    spent_ += more;
    left_ -= std::min(left_, more);
  }

  std::mutex mutex_;
  std::uint64_t left_;
  std::uint64_t spent_ = 0;
  std::unordered_map<std::size_t, std::uint64_t, SeededHash> costs_;
};

}  // namespace cairn::torch_file
