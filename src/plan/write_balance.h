// WriteBalance: which of the ranks that have an item writes it, so that the ranks' bytes come out even.
//
// Pure and deterministic: ties go to the lowest rank.
#pragma once

#include <cstdint>
#include <span>

#include "plan/global_save_plan.h"
#include "plan/item_groups.h"

namespace cairn::plan {

// A part of a replica is at least this big: below, a further chunk costs more than it spreads.
inline constexpr std::uint64_t kPartBytesMin = std::uint64_t{1} << 20;

// Each group is written once: whole by one of its holders or, if it is replicated, in parts that tile it. In the result
// a rank's items are in no order.
GlobalSavePlan balance_writes(std::span<const LocalPlan> ranks, const ItemGroups& items);

// The lowest rank that has an item writes it.
GlobalSavePlan write_at_lowest_rank(std::size_t rank_count, const ItemGroups& items);

}  // namespace cairn::plan
