// The ranks of a save plan together:
//
// 1. Every rank sends its local plan, a digest of each item (save_plan/shared_items.h), and the digests of its values
//    (rank_differences.h).                                                                                   [gather]
// 2. The coordinator looks for items that several ranks have. If there are none, each rank writes all of its items: the
//    exchange ends with step 5. If many items are common, the coordinator assigns all items and lays out all files. If
//    few items are common, the coordinator names them to their ranks.                                       [scatter]
// 3. If few items are common, every rank sends the local plan of its common items, the digests of their values, and the
//    bytes of its own items.                                                                                 [gather]
// 4. The coordinator assigns the common items.                                                              [scatter]
// 5. Every rank takes its assignment: the assigned items, and its own items.
//
// Unless the coordinator has laid out all files, the commit plan makes the joint plan of all items, for `.metadata`,
// when it is first needed: in an asynchronous save by the coordinator's writer. Disagreements of the ranks about a
// tensor then fail the save there.
//
// A rank that fails takes the remaining steps with its error. In step 5 a rank fails alone.
#include "save/plan_exchange.h"

#include <utility>

#include "format/dcp/metadata_template.h"
#include "save/plan_terms.h"
#include "save/save_layout.h"
#include "save/staged_plan.h"
#include "save_plan/local_plans.h"

namespace cairn::checkpointer {
namespace {

using data_file::ItemSource;
using save_plan::CommonItems;
using save_plan::CommonShare;

// The first byte of the coordinator's answer.
constexpr char kAssigned = 0;  // an assignment follows
constexpr char kAsked = 1;     // the indices of the rank's common items follow

// The writes of a rank in a plan of common items, by the rank's own indices.
std::vector<AssignedItem> written_by(std::span<const plan::WriteItem> writes, std::span<const std::uint32_t> common,
                                     std::span<const Box> cuts) {
  std::vector<AssignedItem> written;
  written.reserve(writes.size());
  for (const plan::WriteItem& write : writes) {
    const bool is_part = write.cut != plan::WriteItem::kWhole;
    written.push_back({common[write.item], is_part ? std::make_shared<const Box>(cuts[write.cut]) : nullptr});
  }
  return written;
}

}  // namespace

std::vector<std::string> encode_assignments(std::vector<SaveAssignment>& assignments, PlannedComparison compared,
                                            std::string_view prefix) {
  const std::uint64_t plan_id = new_plan_id();
  std::vector<std::string> messages;
  for (SaveAssignment& assignment : assignments) {
    if (!compared.watched.empty()) assignment.watched = std::move(compared.watched[messages.size()]);
    assignment.plan_id = plan_id;
    messages.push_back(std::string(prefix) + encode_assignment(assignment));
    assignment = SaveAssignment();
  }
  return messages;
}

Result<void> PlanExchange::run(const std::function<Result<void>(const commit::CommitPlan&)>& planned) {
  planned_ = &planned;
  CAIRN_TRY_ASSIGN(std::string answered, ranks_.exchange(ranks_.attempt([&] { return plan_of_this_rank(); }),     // (1)
                                                         [&](Messages all) { return answer(std::move(all)); }));  // (2)
  if (answered.starts_with(kAsked)) {
    const auto mine = [&]() -> Result<std::string> {
      const std::string_view indices = std::string_view(answered).substr(1);
      CAIRN_TRY_ASSIGN(common_, save_plan::decode_indices(indices, sources_.items.sources().size()));
      return common_plan_of_this_rank();
    };
    CAIRN_TRY_ASSIGN(answered, ranks_.exchange(ranks_.attempt(mine),                                           // (3)
                                               [&](Messages all) { return assign_common(std::move(all)); }));  // (4)
  }
  assignment_ = ranks_.attempt([&]() -> Result<SaveAssignment> { return taken(answered); });  // (5)
  return {};
}

Result<std::string> PlanExchange::plan_of_this_rank() const {
  const std::vector<ItemSource>& items = sources_.items.sources();
  // A process alone has nothing in common.
  const std::span<const ItemSource> digested = ranks_.size() > 1 ? std::span(items) : std::span<const ItemSource>();
  std::string message = save_plan::encode_digested_plan(digested, sources_.options.file_per_item, sources_.local_plan);
  save_plan::append_contents(contents_to_send(ranks_, items), message);
  return message;
}

Result<std::string> PlanExchange::common_plan_of_this_rank() const {
  const SaveOptions& options = sources_.options;
  std::vector<ItemSource> items;
  for (const std::uint32_t index : common_) items.push_back(sources_.items.sources()[index]);
  CAIRN_TRY_ASSIGN(const std::string local_plan,
                   save_plan::encode_local_plan(items, {options.record_paths, options.file_per_item, false}));
  std::string message =
      save_plan::encode_common_plan(save_plan::own_items(sources_.items.sources(), common_), local_plan);
  save_plan::append_contents(items, message);
  return message;
}

// Step 2.
Result<PlanExchange::Messages> PlanExchange::answer(Messages messages) {
  CAIRN_TRY_ASSIGN(const std::vector<std::string> contents, take_all_contents(messages));
  std::vector<save_plan::DigestedPlan> digested;
  Messages local_plans;
  for (const std::string& message : messages) {
    CAIRN_TRY_ASSIGN(const save_plan::DigestedPlan plan, save_plan::read_digested_plan(message));
    digested.push_back(plan);
    local_plans.emplace_back(plan.local_plan);
    all_ranks_.push_back({plan.item_count(), plan.file_per_item});
  }
  recorded_ = recorded_ranks(local_plans, sources_.options);
  if (ranks_.size() > 1) found_ = save_plan::find_common_items(digested);
  if (ranks_.size() == 1 || found_.count == CommonItems::Count::kMany) {
    return assign_all(std::move(local_plans), contents);
  }
  local_plans_ = std::move(local_plans);
  if (found_.count == CommonItems::Count::kFew) return request_common();
  return assign_shares({}, {});
}

Result<PlanExchange::Messages> PlanExchange::request_common() const {
  Messages requests;
  for (const std::vector<std::uint32_t>& common : found_.ranks) {
    requests.push_back(kAsked + save_plan::encode_indices(common));
  }
  return requests;
}

Result<PlanExchange::Messages> PlanExchange::assign_all(Messages local_plans,
                                                        const std::vector<std::string>& contents) {
  const SaveOptions& options = sources_.options;
  CAIRN_TRY_ASSIGN(save_plan::PlannedSave planned,
                   save_plan::plan_together(std::move(local_plans), options.dedup_to_lowest_rank));
  CAIRN_TRY_ASSIGN(PlannedComparison compared, compare_planned(planned.local.plans(), contents));
  differences_ = std::move(compared.warning);
  CAIRN_TRY_ASSIGN(SaveLayout layout,
                   lay_out_save(std::move(planned), sources_.ticket, options.alone_as_rank.value_or(0),
                                sources_.checkpoint_id, options.metadata_attributes));
  CAIRN_TRY_ASSIGN(dcp::MetadataTemplate metadata, dcp::MetadataTemplate::make(layout.catalog));
  for (std::size_t rank = 0; rank < recorded_.size(); ++rank) recorded_[rank].file_count = layout.file_counts[rank];
  commit_plan_ = std::make_shared<const commit::CommitPlan>(std::move(metadata), std::move(recorded_));
  if (*planned_) CAIRN_TRY((*planned_)(*commit_plan_));
  catalog_ = std::move(layout.catalog);
  return encode_assignments(layout.assignments, std::move(compared), std::string_view(&kAssigned, 1));
}

// Step 4.
Result<PlanExchange::Messages> PlanExchange::assign_common(Messages messages) {
  CAIRN_TRY_ASSIGN(const std::vector<std::string> contents, take_all_contents(messages));
  std::vector<save_plan::CommonPlan> plans;
  for (std::string& message : messages) {
    CAIRN_TRY_ASSIGN(save_plan::CommonPlan plan, save_plan::decode_common_plan(message));
    plans.push_back(std::move(plan));
    message = std::string();
  }
  CAIRN_TRY_ASSIGN(const save_plan::PlannedSave planned,
                   save_plan::plan_common(std::move(plans), sources_.options.dedup_to_lowest_rank));
  CAIRN_TRY_ASSIGN(PlannedComparison compared, compare_planned(planned.local.plans(), contents));
  differences_ = std::move(compared.warning);
  std::vector<CommonShare> shares;
  for (std::size_t rank = 0; rank < found_.ranks.size(); ++rank) {
    std::vector<std::uint32_t>& common = found_.ranks[rank];
    if (planned.local.plans()[rank].size() != common.size()) {
      return Error(ErrorCode::kCorrupt, "the rank's plan is not that of its common items")
          .rank(static_cast<std::int64_t>(rank));
    }
    if (!compared.watched.empty()) {
      for (save_plan::CommonItem& item : compared.watched[rank]) item.index = common[item.index];
    }
    std::vector<AssignedItem> written = written_by(planned.global.ranks[rank], common, planned.global.cuts);
    shares.push_back({std::move(common), std::move(written)});
  }
  return assign_shares(std::move(shares), compared);
}

// Each rank writes its own items and its share. Without shares no item is common.
Result<PlanExchange::Messages> PlanExchange::assign_shares(std::vector<CommonShare> shares,
                                                           const PlannedComparison& compared) {
  SaveAssignment assignment;
  assignment.ticket = sources_.ticket;
  assignment.plan_id = new_plan_id();
  assignment.adds_own_items = true;
  for (std::size_t rank = 0; rank < all_ranks_.size(); ++rank) {
    std::size_t count = all_ranks_[rank].item_count;
    if (!shares.empty()) count = count - shares[rank].common.size() + shares[rank].written.size();
    recorded_[rank].file_count = file_count_of(rank, count);
    assignment.file_count += recorded_[rank].file_count;
  }
  Messages assignments;
  for (std::size_t rank = 0; rank < all_ranks_.size(); ++rank) {
    if (!shares.empty()) assignment.items = shares[rank].written;
    if (!compared.watched.empty()) assignment.watched = compared.watched[rank];
    assignments.push_back(kAssigned + encode_assignment(assignment));
  }
  commit_plan_ =
      std::make_shared<const commit::CommitPlan>(save_plan::SharedPlans{std::move(local_plans_), std::move(shares)},
                                                 sources_.options.metadata_attributes, std::move(recorded_));
  if (*planned_) CAIRN_TRY((*planned_)(*commit_plan_));
  return assignments;
}

std::uint32_t PlanExchange::file_count_of(std::size_t rank, std::size_t item_count) const {
  if (all_ranks_[rank].file_per_item) return static_cast<std::uint32_t>(item_count);
  return item_count > 0 ? 1 : 0;
}

// Step 5.
Result<SaveAssignment> PlanExchange::taken(std::string_view answered) const {
  if (!answered.starts_with(kAssigned)) return Error(ErrorCode::kCorrupt, "an answer without an assignment");
  CAIRN_TRY_ASSIGN(SaveAssignment assignment, decode_assignment(answered.substr(1)));
  if (!assignment.adds_own_items) return assignment;
  const CommonShare share{common_, std::move(assignment.items)};
  CAIRN_TRY_ASSIGN(assignment.items, save_plan::with_own_items(share, sources_.items.sources().size()));
  return assignment;
}

}  // namespace cairn::checkpointer
