// PlanExchange: the plan of a checkpoint that the ranks of a save make together: which rank writes which item, and the
// commit plan. The steps stand at the top of plan_exchange.cc.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>
#include <cairn/save.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "commit/meeting/commit_plan.h"
#include "commit/save_ticket.h"
#include "coordination/ranks.h"
#include "format/manifest/recorded_plan.h"
#include "save/rank_differences.h"
#include "save/save_items.h"
#include "save/save_messages.h"
#include "save_plan/shared_items.h"

namespace cairn::checkpointer {

// What the plan is made of. The members outlive the PlanExchange.
struct PlanSources {
  const SaveItems& items;
  std::string_view local_plan;  // of save_plan::encode_local_plan() for the items
  const SaveOptions& options;
  const std::string& checkpoint_id;
  const commit::SaveTicket& ticket;
};

// The messages to the ranks, with what each rank watches. Each begins with `prefix`. Empties the assignments.
std::vector<std::string> encode_assignments(std::vector<SaveAssignment>& assignments, PlannedComparison compared,
                                            std::string_view prefix = {});

class PlanExchange {
 public:
  PlanExchange(coordination::Ranks& ranks, const PlanSources& sources) : ranks_(ranks), sources_(sources) {}

  // A collective step. An error is a failure that all ranks get. The coordinator calls `planned` with the commit plan
  // before a rank gets its assignment; its error fails the plan.
  Result<void> run(const std::function<Result<void>(const commit::CommitPlan&)>& planned = {});

  // After run(): this rank's assignment with all items that the rank writes, or a failure of this rank alone.
  Result<SaveAssignment>& assignment() { return assignment_; }

  // The coordinator's, after run().
  const std::shared_ptr<const commit::CommitPlan>& commit_plan() const { return commit_plan_; }
  // The warning about values that differ between the ranks.
  std::optional<std::string> take_differences() { return std::move(differences_); }
  // Nullopt if the coordinator has not laid out all items.
  std::optional<Catalog> take_catalog() { return std::move(catalog_); }

 private:
  using Messages = std::vector<std::string>;

  Result<std::string> plan_of_this_rank() const;
  Result<std::string> common_plan_of_this_rank() const;
  Result<Messages> answer(Messages messages);
  Result<Messages> request_common() const;
  Result<Messages> assign_all(Messages local_plans, const std::vector<std::string>& contents);
  Result<Messages> assign_common(Messages messages);
  Result<Messages> assign_shares(std::vector<save_plan::CommonShare> shares, const PlannedComparison& compared);
  Result<SaveAssignment> taken(std::string_view answered) const;
  std::uint32_t file_count_of(std::size_t rank, std::size_t item_count) const;

  coordination::Ranks& ranks_;
  const PlanSources sources_;
  std::vector<std::uint32_t> common_;  // this rank's common items
  Result<SaveAssignment> assignment_ = Error(ErrorCode::kInternal, "the save has no plan");

  // The coordinator's.
  struct Rank {
    std::size_t item_count = 0;
    bool file_per_item = false;
  };
  std::vector<Rank> all_ranks_;
  std::vector<manifest::RecordedPlan::Rank> recorded_;
  Messages local_plans_;  // of all ranks, for the metadata
  save_plan::CommonItems found_;
  const std::function<Result<void>(const commit::CommitPlan&)>* planned_ = nullptr;
  std::shared_ptr<const commit::CommitPlan> commit_plan_;
  std::optional<std::string> differences_;
  std::optional<Catalog> catalog_;
};

}  // namespace cairn::checkpointer
