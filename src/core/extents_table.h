// ExtentsTable: lists of numbers that many items have in common, each kept once and named by a number.
//
// One thread at a time. A list lives as long as the table, or as a holder of its pointer.
#pragma once

#include <cairn/tensor.h>

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/seeded_hash.h"

namespace cairn {

class ExtentsTable {
 public:
  static constexpr std::uint32_t kNone = 0;  // the number of no list

  std::uint32_t number_of(const Extents& list);
  // Null for kNone.
  const SharedExtents& operator[](std::uint32_t number) const { return lists_[number]; }

 private:
  std::vector<SharedExtents> lists_ = {nullptr};
  std::unordered_map<std::string_view, std::uint32_t, SeededHash> numbers_;  // by the bytes of the list
};

}  // namespace cairn
