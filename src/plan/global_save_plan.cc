#include "plan/global_save_plan.h"

#include <algorithm>

#include "plan/item_groups.h"
#include "plan/write_balance.h"

namespace cairn::plan {

Result<GlobalSavePlan> plan_save(std::span<const LocalPlan> ranks, const SavePlanOptions& options) {
  CAIRN_TRY_ASSIGN(const ItemGroups items, group_items(ranks, options.coverage));
  GlobalSavePlan plan =
      options.to_lowest_rank ? write_at_lowest_rank(ranks.size(), items) : balance_writes(ranks, items);
  for (std::vector<WriteItem>& writes : plan.ranks) {
    if (!std::ranges::is_sorted(writes, {}, &WriteItem::item)) std::ranges::sort(writes, {}, &WriteItem::item);
  }
  return plan;
}

}  // namespace cairn::plan
