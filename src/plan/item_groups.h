// ItemGroups: the items of many ranks, grouped by key and box.
//
// Pure. Linear in the number of items if all ranks list equal keys in equal order and the chunks in order of their
// offsets; otherwise n log n.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "plan/chunk_validation.h"
#include "plan/local_plan.h"

namespace cairn::plan {

// The bytes of a save are at most a signed 64-bit number: a size in a file system.
inline constexpr std::uint64_t kSaveBytesMax = std::numeric_limits<std::int64_t>::max();

// A rank that could write an item.
struct Holder {
  std::uint32_t rank;
  std::uint32_t item;   // index into the rank's LocalPlan
  std::uint64_t bytes;  // may differ between ranks: archives of equal values may differ in length
};

// Items of one or more ranks with equal key and box: to be written once.
struct ItemGroup {
  std::uint32_t first_holder;  // index into ItemGroups::holders; the holders ascend by rank
  std::uint32_t holder_count;
  bool replicated;  // a tensor, declared replicated by all ranks that have the key
};

struct ItemGroups {
  std::vector<Holder> holders;
  std::vector<ItemGroup> groups;  // keys in the order of their first occurrence, chunks of a key by their offsets

  std::span<const Holder> holders_of(const ItemGroup& group) const {
    return std::span(holders).subspan(group.first_holder, group.holder_count);
  }
};

// Groups the items, and checks that they fit together; plan_save() lists the errors. After the check, sums of the
// items' bytes cannot overflow.
Result<ItemGroups> group_items(std::span<const LocalPlan> ranks, Coverage coverage);

}  // namespace cairn::plan
