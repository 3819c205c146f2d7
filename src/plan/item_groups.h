// ItemGroups: the items of many ranks, duplicates brought together.
//
// Pure. Linear in the items where ranks list the same keys in the same order and chunks come in order, n log n else.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <span>
#include <vector>

#include "plan/chunk_validation.h"
#include "plan/local_plan.h"

namespace cairn::plan {

// A rank that could write an item.
struct Holder {
  std::uint32_t rank;
  std::uint32_t item;   // index into the rank's LocalPlan
  std::uint64_t bytes;  // archives of equal values may differ in length
};

// Items with equal key and box, of one rank or more: to be written once.
struct ItemGroup {
  std::uint32_t first_holder;  // index into ItemGroups::holders; they ascend by rank
  std::uint32_t holder_count;
  bool replicated;  // a tensor, and all that have the key declare it equal
};

struct ItemGroups {
  std::vector<Holder> holders;
  std::vector<ItemGroup> groups;  // keys in the order in which they are first seen, chunks of a key by their offsets

  std::span<const Holder> holders_of(const ItemGroup& group) const {
    return std::span(holders).subspan(group.first_holder, group.holder_count);
  }
};

// Groups the items and makes sure that they fit together; see plan_save() for the errors. Later sums of the items'
// bytes cannot overflow.
Result<ItemGroups> group_items(std::span<const LocalPlan> ranks, Coverage coverage);

}  // namespace cairn::plan
