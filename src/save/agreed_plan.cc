#include "save/agreed_plan.h"

#include <utility>

#include "save/plan_confirmation.h"
#include "save/plan_terms.h"
#include "save/process_plans.h"
#include "save/rank_differences.h"
#include "save/resumed_plan.h"

namespace cairn::checkpointer {
namespace {

std::string terms_of(const PlanningRank& rank) {
  return plan_terms(rank.options, rank.ranks.rank(), rank.ranks.size());
}

void keep(const PlanningRank& rank, std::shared_ptr<const StagedPlan> plan) {
  if (rank.kept == nullptr) return keep_process_plan(std::move(plan));
  rank.kept->keep(std::move(plan));
}

}  // namespace

commit::RankPlace place_of(const SaveOptions& options, const coordination::Ranks& ranks) {
  return {options.alone_as_rank.value_or(static_cast<std::uint32_t>(ranks.rank())),
          static_cast<std::uint32_t>(ranks.size()), static_cast<std::uint32_t>(options.coordinator_rank)};
}

std::shared_ptr<const StagedPlan> find_plan(const PlanningRank& rank) {
  const coordination::Ranks& ranks = rank.ranks;
  if (ranks.size() == 1 && rank.kept == nullptr) return nullptr;
  const std::string terms = terms_of(rank);
  std::shared_ptr<const StagedPlan> plan =
      rank.kept != nullptr ? rank.kept->find(rank.local_plan, terms) : find_process_plan(rank.local_plan, terms);
  if (plan || ranks.size() == 1) return plan;
  return resume_plan(rank.items,
                     {rank.local_plan, terms, ranks.rank(), ranks.size(), ranks.is_coordinator(),
                      rank.options.file_per_item, rank.options.metadata_attributes, rank.options.deadlines.publish});
}

Vote vote_for(const std::shared_ptr<const StagedPlan>& plan, const SaveItems& items) {
  Vote vote;
  vote.differences_noted = are_differences_noted();
  if (plan) vote.plan_id = plan->id;
  if (plan && !vote.differences_noted) vote.content_sums = content_sums(items.sources(), plan->watched);
  return vote;
}

Result<Agreement> agree(const PlanningRank& rank, const Result<Vote>& vote, std::shared_ptr<const StagedPlan> plan) {
  CAIRN_TRY_ASSIGN(const VoteCount count, hold_vote(rank.ranks, vote));
  if (!count.ticket && (plan || !rank.options.safetensors))
    return Error(ErrorCode::kInternal, "the save has no coordinator");
  if (count.plan_id == 0) plan.reset();
  DifferentSets different = count.different;
  if (plan && !plan->is_confirmed) {
    CAIRN_TRY_ASSIGN(Confirmation confirmed,
                     confirm_plan(rank.ranks, *count.ticket, plan, rank.items.sources(), rank.options.record_paths));
    plan = std::move(confirmed.plan);
    different = confirmed.different;
    if (plan) keep(rank, plan);
  }
  if (count.differences_noted) (void)note_differences();
  Agreement agreed{count.ticket, std::move(plan), std::nullopt};
  if (!agreed.plan || different.none() || count.differences_noted) return agreed;
  CAIRN_TRY_ASSIGN(agreed.differences,
                   find_differences(rank.ranks, rank.items.sources(), agreed.plan->watched, different));
  return agreed;
}

Result<std::shared_ptr<const StagedPlan>> keep_plan(const PlanningRank& rank, const SaveAssignment& assignment,
                                                    std::span<const data_file::ItemSource> sources,
                                                    std::shared_ptr<const commit::CommitPlan> commit_plan) {
  auto plan = std::make_shared<StagedPlan>();
  plan->id = assignment.plan_id;
  plan->local_plan = std::move(rank.local_plan);
  plan->terms = terms_of(rank);
  plan->items = assignment.items;
  CAIRN_TRY_ASSIGN(plan->watched, watch_items(rank.items.sources(), assignment.watched));
  const data_file::ImageIdentity identity{assignment.ticket.identity.save_id, place_of(rank.options, rank.ranks).rank,
                                          0, assignment.file_count};
  CAIRN_TRY(lay_out_staged(sources, identity, rank.options.file_per_item, std::move(commit_plan), *plan));
  keep(rank, plan);
  return std::shared_ptr<const StagedPlan>(std::move(plan));
}

}  // namespace cairn::checkpointer
