#include "plan/global_save_plan.h"

#include <algorithm>
#include <string>

#include "core/checked.h"
#include "plan/item_groups.h"
#include "plan/write_balance.h"

namespace cairn::plan {
namespace {

Result<void> check_own_bytes(std::span<const OwnItems> own) {
  std::uint64_t sum = 0;
  for (const OwnItems& items : own) {
    const auto with_items = checked_add(items.bytes, items.empty);
    const auto next = with_items ? checked_add(sum, *with_items) : std::nullopt;
    if (!next || *next > kSaveBytesMax) {
      return Error(ErrorCode::kInvalidArgument, "a save of more than 2^63 - 1 bytes");
    }
    sum = *next;
  }
  return {};
}

// How a rank writes an item.
enum class Written : std::uint8_t { kNot, kPart, kWhole };

Error not_written_once(const LocalItem& item) {
  return Error(ErrorCode::kInternal, "the plan does not write the item once").key(item.fqn);
}

}  // namespace

Result<GlobalSavePlan> plan_save(std::span<const LocalPlan> ranks, const SavePlanOptions& options) {
  CAIRN_TRY(check_own_bytes(options.own));
  CAIRN_TRY_ASSIGN(const ItemGroups items, group_items(ranks, options.coverage));
  GlobalSavePlan plan =
      options.to_lowest_rank ? write_at_lowest_rank(ranks.size(), items) : balance_writes(ranks, items, options.own);
  for (std::vector<WriteItem>& writes : plan.ranks) {
    if (!std::ranges::is_sorted(writes, {}, &WriteItem::item)) std::ranges::sort(writes, {}, &WriteItem::item);
  }
  return plan;
}

Result<void> check_plan(std::span<const LocalPlan> ranks, const GlobalSavePlan& plan, Coverage coverage) {
  CAIRN_TRY_ASSIGN(const ItemGroups items, group_items(ranks, coverage));
  std::vector<std::vector<Written>> written(ranks.size());
  std::size_t write_count = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    written[rank].resize(ranks[rank].size(), Written::kNot);
    for (const WriteItem& write : plan.ranks[rank]) {
      Written& item = written[rank][write.item];
      if (item != Written::kNot) return not_written_once(ranks[rank][write.item]);
      item = write.cut == WriteItem::kWhole ? Written::kWhole : Written::kPart;
      ++write_count;
    }
  }
  for (const ItemGroup& group : items.groups) {
    std::size_t wholes = 0;
    std::size_t parts = 0;
    for (const Holder& holder : items.holders_of(group)) {
      const Written how = written[holder.rank][holder.item];
      wholes += how == Written::kWhole ? 1 : 0;
      parts += how == Written::kPart ? 1 : 0;
    }
    const Holder& first = items.holders_of(group)[0];
    if (wholes != (parts == 0 ? 1U : 0U)) return not_written_once(ranks[first.rank][first.item]);
    write_count -= wholes + parts;
  }
  // What remains are chunks without elements that are left out, because a second chunk begins at their offsets.
  if (write_count != 0) return Error(ErrorCode::kInternal, "the plan writes an item that has no place in its tensor");
  return {};
}

}  // namespace cairn::plan
