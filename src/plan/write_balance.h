// WriteBalance: chooses the writing rank of each item, and evens out the bytes of the ranks.
//
// Pure and deterministic: ties go to the lowest rank.
#pragma once

#include <cstdint>
#include <span>

#include "plan/global_save_plan.h"
#include "plan/item_groups.h"

namespace cairn::plan {

// The smallest part of a replica: a smaller part would cost more as an extra chunk than its spreading gains.
inline constexpr std::uint64_t kPartBytesMin = std::uint64_t{1} << 20;

// Every group is written once. A holder writes the whole group; a replicated group may also be written in parts, which
// tile the box. The items of a rank are in no particular order in the result. `own`: as in SavePlanOptions; the sum of
// their bytes is at most 2^63 - 1.
GlobalSavePlan balance_writes(std::span<const LocalPlan> ranks, const ItemGroups& items,
                              std::span<const OwnItems> own = {});

// The lowest rank that has an item writes the item.
GlobalSavePlan write_at_lowest_rank(std::size_t rank_count, const ItemGroups& items);

}  // namespace cairn::plan
