// The plan of a save that the ranks agree on: steps 1 to 3 that blocking and asynchronous saves have in common (save.cc
// and async_save_operation.cc).
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/result.h>
#include <cairn/save.h>

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "commit/meeting/commit_plan.h"
#include "coordination/ranks.h"
#include "save/save_items.h"
#include "save/save_messages.h"
#include "save/staged_plan.h"
#include "save/vote.h"

namespace cairn::checkpointer {

// The number of this rank in the names of its files, the number of ranks, and the coordinator.
commit::RankPlace place_of(const SaveOptions& options, const coordination::Ranks& ranks);

// What a rank plans with. The members outlive the calls.
struct PlanningRank {
  coordination::Ranks& ranks;
  const SaveOptions& options;
  SaveItems& items;
  std::string& local_plan;  // of save_plan::encode_local_plan() for the items
  StagedPlans* kept;        // the plans of earlier saves; null: the process's (process_plans.h)
};

// Step 1: the plan of an earlier save, or of the checkpoint that the job has loaded. Null if there is none, and for a
// process alone without `kept`, which plans without messages.
std::shared_ptr<const StagedPlan> find_plan(const PlanningRank& rank);
// Step 1: the vote for `plan`, which may be null. The coordinator adds its ticket.
Vote vote_for(const std::shared_ptr<const StagedPlan>& plan, const SaveItems& items);

struct Agreement {
  std::optional<commit::SaveTicket> ticket;  // none for a model
  std::shared_ptr<const StagedPlan> plan;    // null: the ranks plan anew
  std::optional<std::string> differences;    // the coordinator's warning about values that differ between the ranks
};
// Step 2, a collective step. `plan`: the plan of the vote. A plan that the ranks have now confirmed is kept.
Result<Agreement> agree(const PlanningRank& rank, const Result<Vote>& vote, std::shared_ptr<const StagedPlan> plan);

// Step 3: keeps the plan of an assignment for later saves. `sources` are the items of the assignment. Empties
// `rank.local_plan`. `commit_plan`: null except at the coordinator.
Result<std::shared_ptr<const StagedPlan>> keep_plan(const PlanningRank& rank, const SaveAssignment& assignment,
                                                    std::span<const data_file::ItemSource> sources,
                                                    std::shared_ptr<const commit::CommitPlan> commit_plan);

}  // namespace cairn::checkpointer
