// The trainer's part of an asynchronous save.
//
// 1. Describe. Every rank describes its state; byte items are serialised. The rank takes an arena, and waits if earlier
//    saves hold all arenas or all available memory. With several ranks the wait for memory is limited: the remaining
//    ranks wait in step 2, and the coordinator may have claimed the directory. The coordinator's writer claims the
//    directory (commit/meeting/rank_save.cc, step 1). If an earlier plan fits, every rank already lists the copies of
//    step 5 and samples the tensors; the coordinator lists and samples while its writer claims. An earlier plan is a
//    plan of this job, or the plan of the checkpoint that the job has loaded (resumed_plan.cc).
// 2. Agree. Every rank votes for the earlier plan that fits, if any; the coordinator's vote carries the claim's ticket.
//    If a rank has failed, all ranks then get the failures. The plan of a checkpoint is compared between the ranks
//    before its first use (plan_confirmation.cc).
//    If the ranks' common values differ for the first time, the ranks find their keys (rank_differences.h).
//                     [reduction; after a failure also all-gather; for a checkpoint's plan a reduction; maybe a gather]
// 3. Plan, unless all ranks voted for one plan: plan_exchange.cc. If few items are common to several ranks, or none,
//    the coordinator's writer makes the joint plan for `.metadata` in step 5, beside the trainer.
//                                                                                 [gather, scatter, maybe once more]
// 4. Begin. If step 1 did not know the size of the arena, the arena gets its size now. The wait for memory is always
//    limited in step 4: the writers of all ranks wait for this rank. The rank's writer writes its lease: from now on
//    the remaining ranks' writers can see whether this rank's writer is alive.
// 5. Stage. The tensors are copied into the arena; then the writer continues without the trainer. If run() returns
//    before the copies are complete, each tensor is sampled before run() returns and compared with the copy afterwards:
//    a difference means a write to the tensor in between, and fails the save.
//
// A failure before the assignments are scattered (step 3) fails the save on all ranks. A rank that fails later leaves
// its error in a failure mark, which the writers of the remaining ranks read.
#include "save/async_save_operation.h"

#include <cairn/bucket_url.h>

#include <utility>

#include "commit/job_identity.h"
#include "core/attempt.h"
#include "os/umask.h"
#include "save/claim_options.h"
#include "save/held_parts.h"
#include "save/option_checks.h"
#include "save/plan_exchange.h"
#include "save/save_messages.h"
#include "save_plan/local_plans.h"

namespace cairn::checkpointer {
namespace {

using data_file::ItemSource;

}  // namespace

AsyncSaveOperation::AsyncSaveOperation(const AsyncSaveResources& resources, const std::filesystem::path& directory,
                                       const AsyncSaveOptions& options)
    : resources_(resources),
      directory_(is_bucket_url(directory) ? directory.string() : std::filesystem::absolute(directory).string()),
      options_(options),
      checkpoint_id_(options.save.checkpoint_id.empty() ? directory.string() : options.save.checkpoint_id),
      ranks_(options.save.collectives, options.save.coordinator_rank),
      place_(place_of(options.save, ranks_)) {}

Result<AsyncSave> AsyncSaveOperation::run(const Result<const StateDict*>& state) {
  const auto rank_count = static_cast<std::uint32_t>(ranks_.size());
  events_ = events::Operation::begin(EventOperation::kSave, {directory_, place_.rank, rank_count}, true);
  Result<AsyncSave> save = attempt([&] { return take_steps(state); });
  if (!save && !shared_) events_.fail(save.error());
  if (!save && shared_) shared_->fail(save.error());
  return save;
}

Result<AsyncSave> AsyncSaveOperation::take_steps(const Result<const StateDict*>& state) {
  CAIRN_TRY(agree(ranks_.attempt([&] { return prepare(state); })));
  if (!plan_) CAIRN_TRY(plan_anew());
  shared_->events.step(EventKind::kPlanned);
  Result<AsyncSave> save = ranks_.attempt([&] { return begin(); });
  if (!save && !is_with_writer_) write_failure_mark(save.error());
  return save;
}

PlanningRank AsyncSaveOperation::planning() { return {ranks_, options_.save, items_, local_plan_, resources_.plans}; }

// Step 1.
Result<Vote> AsyncSaveOperation::prepare(const Result<const StateDict*>& state) {
  if (!state) return state.error();
  CAIRN_TRY(check_asynchronous(options_.save));
  if (options_.save.alone_as_rank && ranks_.size() > 1) {
    return Error(ErrorCode::kInvalidArgument, "alone_as_rank can't be combined with collectives");
  }
  CAIRN_TRY_ASSIGN(items_, SaveItems::make(**state, ReadableMemory::kOfAnyDevice));
  CAIRN_TRY_ASSIGN(local_plan_, save_plan::encode_local_plan(items_.sources(), {options_.save.record_paths,
                                                                                options_.save.file_per_item, false}));
  plan_ = find_plan(planning());
  const auto expected = plan_ ? std::optional(plan_->layout->arena_bytes) : std::nullopt;
  const auto wait_max = ranks_.size() > 1 ? std::optional(memory_wait_max(options_.save.deadlines)) : std::nullopt;
  resources_.links->release_parked();
  CAIRN_TRY_ASSIGN(std::shared_ptr<staging::Arena> arena,
                   resources_.arenas->take(expected, options_.save.interrupted, wait_max));
  auto shared = std::make_shared<StagedSave>();
  shared->directory = directory_;
  shared->arena = std::move(arena);
  shared->links = resources_.links;
  if (ranks_.size() > 1) shared->rank = place_.rank;
  if (ranks_.size() == 1 && !options_.save.alone_as_rank) shared->parts_warning = warning_of_parts(**state);
  if (auto started = start_writer(shared, events_, *resources_.writer); !started) return std::move(started).error();
  shared_ = std::move(shared);
  Vote vote = vote_for(plan_, items_);
  Result<void> listed;
  const auto list = [&] {
    if (plan_) listed = attempt([&] { return list_copies(); });
  };
  if (!ranks_.is_coordinator()) {
    list();
  } else {
    const writer::ClaimRequest request{directory_,
                                       commit::next_save_identity(),
                                       place_.rank,
                                       claim_options_of(options_.save),
                                       options_.save.deadlines,
                                       os::current_umask()};
    CAIRN_TRY_ASSIGN(vote.ticket, shared_->save->claim(request, list));
  }
  CAIRN_TRY(listed);
  return vote;
}

// Lists the copies of step 5 by the plan, and samples the tensors.
Result<void> AsyncSaveOperation::list_copies() {
  StagedSave& shared = *shared_;
  CAIRN_TRY_ASSIGN(const std::vector<ItemSource> sources, items_.take(plan_->items));
  shared.copies.clear();
  shared.copies.reserve(sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const TensorView* const tensor = sources[i].tensor != nullptr ? &sources[i].tensor->local : nullptr;
    shared.copies.push_back({tensor, sources[i].bytes, plan_->payload_offsets[i], sources[i].entry->fqn});
  }
  CAIRN_TRY(sample_sources(shared, options_));
  listed_ = plan_;
  return {};
}

// Step 2.
Result<void> AsyncSaveOperation::agree(const Result<Vote>& vote) {
  CAIRN_TRY_ASSIGN(Agreement agreed, checkpointer::agree(planning(), vote, plan_));
  if (!agreed.ticket) return Error(ErrorCode::kInternal, "the save has no coordinator");
  ticket_ = agreed.ticket;
  shared_->save_id = ticket_->identity.save_id;
  if (agreed.plan && listed_ == plan_) listed_ = agreed.plan;  // after a confirmation: the copies are equal
  plan_ = std::move(agreed.plan);
  shared_->differences = std::move(agreed.differences);
  return {};
}

// Step 3.
Result<void> AsyncSaveOperation::plan_anew() {
  PlanExchange exchange(ranks_, {items_, local_plan_, options_.save, checkpoint_id_, *ticket_});
  CAIRN_TRY(exchange.run());
  shared_->differences = exchange.take_differences();
  Result<void> taken = ranks_.attempt([&]() -> Result<void> {
    CAIRN_TRY_ASSIGN(const SaveAssignment assignment, std::move(exchange.assignment()));
    CAIRN_TRY_ASSIGN(const std::vector<ItemSource> sources, items_.take(assignment.items));
    CAIRN_TRY_ASSIGN(plan_, keep_plan(planning(), assignment, sources, exchange.commit_plan()));
    return {};
  });
  if (!taken) write_failure_mark(taken.error());
  return taken;
}

// Step 4.
Result<AsyncSave> AsyncSaveOperation::begin() {
  StagedSave& shared = *shared_;
  if (listed_ != plan_) CAIRN_TRY(list_copies());
  shared.file_bytes = plan_->file_bytes;
  CAIRN_TRY(resources_.arenas->fit(shared.arena, plan_->layout->arena_bytes, options_.save.interrupted,
                                   memory_wait_max(options_.save.deadlines)));
  writer::SaveRequest request = save_request(shared, options_, plan_->layout);
  request.directory = directory_;
  request.ticket = *ticket_;
  request.place = place_;
  for (std::size_t i = 0; i < plan_->layout->files.size(); ++i) {
    request.names.push_back(commit::data_file_name(*ticket_, place_.rank, static_cast<std::uint32_t>(i)));
  }
  if (const auto& commit_plan = plan_->layout->commit_plan) {
    request.checkpoint_id = checkpoint_id_;
    request.notes = options_.save.notes;
    shared.render_metadata = [commit_plan, ticket = *ticket_, place = request.place, id = checkpoint_id_] {
      return commit_plan->pickle(ticket, place, id);
    };
  }
  shared.arena->forget_staged();
  is_with_writer_ = true;  // from now on the writer reports a failure to the remaining ranks
  CAIRN_TRY(shared.save->begin(request));
  shared.items = std::move(items_);
  return stage_in_background_or_now(shared_, options_, plan_->layout->arena_bytes, resources_.in_background);
}

void AsyncSaveOperation::write_failure_mark(const Error& reason) const {
  if (ticket_) mark_failure_before_begin(directory_, *ticket_, place_, options_.save.deadlines, reason);
}

}  // namespace cairn::checkpointer
