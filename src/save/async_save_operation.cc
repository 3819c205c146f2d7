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

#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>

#include "commit/job_identity.h"
#include "core/attempt.h"
#include "os/call_within.h"
#include "os/process_identity.h"
#include "os/umask.h"
#include "save/claim_options.h"
#include "save/held_parts.h"
#include "save/option_checks.h"
#include "save/plan_exchange.h"
#include "save/save_messages.h"
#include "save_plan/local_plans.h"
#include "staging/snapshot_copy.h"
#include "storage/open_directory.h"

namespace cairn::checkpointer {
namespace {

using data_file::ItemSource;

// The coordinator's writer gives the save up if step 4 has not begun one progress deadline after the claim. The
// remaining ranks' writers give the save up if this rank's writer has not started within the deadline. A rank may wait
// for memory in step 1, and then a second rank in step 4. Each wait is limited to a third of the deadline, which leaves
// a third for the steps between. Then all ranks report the lack of memory, not a missing rank.
constexpr int kMemoryWaitShare = 3;

// The wait for copies by devices that were queued before a failure.
constexpr std::chrono::milliseconds kSettleMax{1000};

std::chrono::milliseconds memory_wait_max(const SaveDeadlines& deadlines) {
  return deadlines.progress / kMemoryWaitShare;
}

}  // namespace

// The state that the operation, the writer and the caller's AsyncSave share until the save has ended.
struct AsyncSaveOperation::SharedState {
  // Null after staging; the writer keeps a reference until the files are written.
  std::shared_ptr<staging::Arena> arena;
  std::function<Result<std::string>()> render_metadata;
  SaveId save_id;
  std::string directory;  // for the texts of errors
  std::promise<Result<void>> staging;
  std::promise<Result<AsyncSaveReport>> write;
  std::unique_ptr<writer::WriterSave> save;
  std::optional<std::uint32_t> rank;            // if there are several
  std::atomic<std::uint64_t> bytes_written{0};  // 0 until the save has succeeded
  std::uint64_t file_bytes = 0;                 // of this rank's files
  std::optional<std::string> parts_warning;
  std::optional<std::string> differences;  // the coordinator's warning about values that differ between the ranks
  std::atomic<bool> is_staged{false};
  events::Operation events;
  // For a staging that continues after run().
  SaveItems items;
  std::vector<staging::CopyItem> copies;
  staging::SourceSamples samples;
  std::unique_ptr<staging::DeviceSources> devices;  // null if no tensor is on a device
  staging::StagingFence fence;
  std::shared_ptr<device::Links> links;

  void abandon(const Error& reason) const { save->abandon(rank ? Error(reason).rank(*rank) : reason); }

  // A writer process sends its reports with a delay. Before the first report the phase and the totals come from here.
  SaveProgress progress() const {
    if (const std::uint64_t bytes = bytes_written) return {SavePhase::kEnded, bytes, bytes};
    const commit::ProgressReport report = save->progress();
    SaveProgress progress{report.phase, report.bytes_written, report.bytes_total};
    if (is_staged && progress.phase == SavePhase::kStaging) progress.phase = SavePhase::kWriting;
    if (progress.bytes_total == 0) progress.bytes_total = file_bytes;
    return progress;
  }

  // An error that the caller receives from a future, with the directory of the save.
  Error named(const Error& error) const { return Error(error).while_doing("saving to '" + directory + "'"); }

  void end(Result<commit::RankSaveReport> outcome) {
    if (!outcome) {
      events.fail(named(outcome.error()));
      write.set_value(attempt([&]() -> Result<AsyncSaveReport> { return named(outcome.error()); }));
      return;
    }
    events.end(EventKind::kCommitted, outcome->bytes_written);
    bytes_written = outcome->bytes_written;
    if (differences && note_differences()) outcome->warnings.push_back(*std::move(differences));
    // The arena is registered while the files are written, so a refusal is known by now.
    if (auto refusal = links ? links->untold_refusal() : std::nullopt) outcome->warnings.push_back(*std::move(refusal));
    if (parts_warning) outcome->warnings.push_back(*parts_warning);
    events::add_trace_problem(outcome->warnings);
    write.set_value(AsyncSaveReport{save_id, render_metadata, outcome->bytes_written, std::move(outcome->warnings)});
  }
};

AsyncSaveOperation::AsyncSaveOperation(const AsyncSaveResources& resources, const std::filesystem::path& directory,
                                       const AsyncSaveOptions& options)
    : resources_(resources),
      directory_(std::filesystem::absolute(directory).string()),
      options_(options),
      checkpoint_id_(options.save.checkpoint_id.empty() ? directory.string() : options.save.checkpoint_id),
      ranks_(options.save.collectives, options.save.coordinator_rank),
      place_(place_of(options.save, ranks_)) {}

Result<AsyncSave> AsyncSaveOperation::run(const Result<const StateDict*>& state) {
  // Without abandon() the writer would keep the save and the arena until the deadline. attempt() makes exceptions
  // errors, so that exceptions reach abandon(), too.
  const auto rank_count = static_cast<std::uint32_t>(ranks_.size());
  events_ = events::Operation::begin(EventOperation::kSave, {directory_, place_.rank, rank_count}, true);
  Result<AsyncSave> save = attempt([&] { return take_steps(state); });
  if (!save && !shared_) events_.fail(save.error());
  if (!save && shared_) {
    shared_->events.fail(shared_->named(save.error()));  // before the writer reports the end
    shared_->abandon(save.error());
    shared_->devices.reset();  // here and not on the writer's thread: samples may hold back the caller's streams
  }
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
  auto shared = std::make_shared<SharedState>();
  shared->directory = directory_;
  shared->arena = std::move(arena);
  shared->links = resources_.links;
  if (ranks_.size() > 1) shared->rank = place_.rank;
  if (ranks_.size() == 1 && !options_.save.alone_as_rank) shared->parts_warning = warning_of_parts(**state);
  writer::SaveWriter::Written report_written;
  if (events_.is_told()) {
    // Weak: shared->save keeps the function. The function of the outcome keeps the state alive until the save ends.
    report_written = [weak = std::weak_ptr(shared)](const writer::WrittenFiles& written) {
      const auto alive = weak.lock();
      if (alive) alive->events.step_of(written.process_id, EventKind::kWritten, written.time, written.bytes);
    };
  }
  shared->events = std::move(events_);
  auto started = resources_.writer->start(
      [shared](Result<commit::RankSaveReport> outcome) { shared->end(std::move(outcome)); }, std::move(report_written));
  if (!started) {
    events_ = std::move(shared->events);
    return std::move(started).error();
  }
  shared->save = std::move(*started);
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
  SharedState& shared = *shared_;
  CAIRN_TRY_ASSIGN(const std::vector<ItemSource> sources, items_.take(plan_->items));
  shared.copies.clear();
  shared.copies.reserve(sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const TensorView* const tensor = sources[i].tensor != nullptr ? &sources[i].tensor->local : nullptr;
    shared.copies.push_back({tensor, sources[i].bytes, plan_->payload_offsets[i], sources[i].entry->fqn});
  }
  std::optional<std::uint64_t> sample_seed;
  if (options_.asynchronous_staging && options_.torn_snapshot_alarm) sample_seed = os::random_128().low;
  // First the devices: they work while the CPU reads its samples.
  CAIRN_TRY_ASSIGN(shared.devices, staging::DeviceSources::mark(shared.copies, shared.links, sample_seed));
  if (sample_seed) shared.samples = staging::SourceSamples::take(shared.copies, *sample_seed);
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
  SharedState& shared = *shared_;
  if (listed_ != plan_) CAIRN_TRY(list_copies());
  shared.file_bytes = plan_->file_bytes;
  CAIRN_TRY(resources_.arenas->fit(shared.arena, plan_->layout->arena_bytes, options_.save.interrupted,
                                   memory_wait_max(options_.save.deadlines)));
  const SaveOptions& save = options_.save;
  writer::SaveRequest request;
  request.directory = directory_;
  request.ticket = *ticket_;
  request.place = place_;
  request.arena = shared.arena;
  request.layout = plan_->layout;
  for (std::size_t i = 0; i < plan_->layout->files.size(); ++i) {
    request.names.push_back(commit::data_file_name(*ticket_, place_.rank, static_cast<std::uint32_t>(i)));
  }
  if (const auto& commit_plan = plan_->layout->commit_plan) {
    request.checkpoint_id = checkpoint_id_;
    request.notes = save.notes;
    shared.render_metadata = [commit_plan, ticket = *ticket_, place = request.place, id = checkpoint_id_] {
      return commit_plan->pickle(ticket, place, id);
    };
  }
  request.durability = save.durability;
  request.thread_count = save.thread_count;
  request.direct_io = save.direct_io;
  request.trainer_waits = !options_.asynchronous_staging;
  request.deadlines = save.deadlines;
  request.umask = os::current_umask();
  shared.arena->forget_staged();
  is_with_writer_ = true;  // from now on the writer reports a failure to the remaining ranks
  CAIRN_TRY(shared.save->begin(request));
  AsyncSave handle;
  handle.staging = shared.staging.get_future().share();
  handle.write = shared.write.get_future().share();
  handle.progress = [kept = shared_] { return kept->progress(); };
  shared.events.work().measure([weak = std::weak_ptr(shared_)](WorkCount& count) {
    const std::shared_ptr<SharedState> kept = weak.lock();
    if (!kept) return;
    const SaveProgress progress = kept->progress();
    count.total = progress.bytes_total;
    count.done = progress.bytes_written;
  });
  handle.fence = [kept = shared_](const Device& device, std::chrono::milliseconds timeout) -> Result<bool> {
    if (!kept->fence.wait_open(timeout)) return false;
    CAIRN_TRY(kept->fence.make_wait(device));
    return true;
  };
  shared.items = std::move(items_);
  staging::CopyOptions copying;
  copying.arena_bytes = plan_->layout->arena_bytes;
  copying.devices = shared.devices.get();
  copying.fence = &shared.fence;
  copying.stall_max = save.deadlines.progress;
  if (options_.asynchronous_staging) {
    copying.samples = &shared.samples;
    copying.confirm = options_.confirm_sources;
    CAIRN_TRY(resources_.in_background([kept = shared_, copying] { (void)stage(*kept, copying); }));
    return handle;
  }
  copying.interrupted = save.interrupted;
  CAIRN_TRY(stage(shared, copying));
  return handle;
}

// Step 5. May run on a background thread, so no exception may leave the function.
Result<void> AsyncSaveOperation::stage(SharedState& shared, const staging::CopyOptions& options) {
  Result<void> staged = attempt([&] { return staging::copy_into(*shared.arena, shared.copies, options); });
  // After a failure the copies do not matter to the save, but the trainer may free the tensors.
  shared.fence.open(staged || !shared.devices ? staging::DeviceSources::Marks() : shared.devices->marks());
  (void)attempt([&]() -> Result<void> {
    if (staged) shared.events.step(EventKind::kStaged, shared.file_bytes);
    if (staged) return shared.save->staged();  // the write future reports a lost writer
    shared.abandon(staged.error());
    return {};
  });
  shared.is_staged = staged.has_value();
  leave_devices(shared, staged.has_value(), !options.samples);
  shared.arena.reset();
  shared.copies.clear();
  shared.samples = {};
  shared.items = SaveItems();  // may hold large values
  const auto reported = [&]() -> Result<void> { return staged ? Result<void>() : shared.named(staged.error()); };
  shared.staging.set_value(attempt(reported));
  return staged;
}

// After the copies: prepares the arena for the next save. After a failure the devices may still write into the arena:
// the arena then stays out of use until they are done. The devices may also still read the tensors: then the caller's
// streams wait, and after an asynchronous staging the streams of the next fence.
void AsyncSaveOperation::leave_devices(SharedState& shared, bool is_staged, bool is_on_callers_thread) {
  if (shared.devices == nullptr) return;
  if (is_staged) {
    shared.devices->register_beside(*shared.arena);
  } else if (!shared.devices->settle(kSettleMax)) {
    if (is_on_callers_thread) shared.devices->hold_back_caller();
    shared.arena->note_stuck();
    staging::DeviceSources::park(std::move(shared.devices), shared.arena);
  }
  shared.devices.reset();
}

// Between step 2 and step 4 this rank's writer has no lease, so the writers of the remaining ranks can't see that the
// rank has failed. If the storage hangs, the caller continues after the deadline of the call; the remaining ranks then
// wait until their deadline.
void AsyncSaveOperation::write_failure_mark(const Error& reason) const {
  if (ranks_.size() == 1 || ranks_.is_coordinator() || !ticket_) return;
  const commit::RankPlace& place = place_;
  (void)os::call_within(options_.save.deadlines.publish, [directory = directory_, ticket = *ticket_, place, reason] {
    return attempt([&]() -> Result<void> {
      CAIRN_TRY_ASSIGN(auto storage, storage::make_directory(directory));
      const auto save = commit::RankSave::join(std::move(storage), ticket);
      save->fail_before_entry(place, reason);
      return {};
    });
  });
}

}  // namespace cairn::checkpointer
