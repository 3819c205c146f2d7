// The steps are those of a WatchedThread (storage/watched_thread.h). Of a save:
//
// 1. The caller gives the worker's thread a task and waits. While waiting, the caller judges the calls into the storage
//    and calls `interrupted`.
// 2. A call exceeds its deadline: the save is given up. SaveFence decides whether the save may still be committed: only
//    if the rename of `.metadata` has begun. Then the thread is abandoned.
// 3. The caller closes the gate of the sources: pending copies out of the caller's tensors are waited for, and no
//    other copy begins. Therefore the tensors may be freed when the save returns. The hanging thread reads only
//    buffers of the worker.
// 4. When the hanging call returns, the thread withdraws the files that were not committed, and ends.
#include "save/save_worker.h"

#include <algorithm>

#include "commit/progress_tracker.h"
#include "core/attempt.h"
#include "storage/operation_watch.h"
#include "storage/watched_storage.h"

namespace cairn::checkpointer {
namespace {

using GivenUp = commit::SaveFence::GivenUp;

// After an interruption a pending call has kCallGrace to return; then the save is given up. A sync has kSyncGrace,
// because a sync of ten seconds is normal, and a save that is given up during a sync leaves files behind that it could
// have withdrawn.
constexpr std::chrono::milliseconds kCallGrace{2000};
constexpr std::chrono::milliseconds kSyncGrace{30'000};

// `waited`: the time since the interruption. A call that was pending for long before the interruption has the grace
// time, too.
SaveDeadlines shortened(SaveDeadlines deadlines, std::chrono::steady_clock::duration waited) {
  if (waited >= kCallGrace) {
    deadlines.progress = std::min(deadlines.progress, kCallGrace);
    deadlines.publish = std::min(deadlines.publish, kCallGrace);
  }
  if (waited >= kSyncGrace) deadlines.sync = std::min(deadlines.sync, kSyncGrace);
  return deadlines;
}

Error of_a_fork() {
  return Error(ErrorCode::kUnavailable,
               "this process is a forked child; the save belongs to its parent: make a new save here");
}

}  // namespace

std::string not_cleaned_up(const Error& reason) {
  return std::string("committed, but not cleaned up: ") + reason.what();
}

void WorkerState::drop() {
  writer.reset();
  transaction.reset();
  storage.reset();
  open = {};
}

SaveWorker::SaveWorker(const SaveDeadlines& deadlines)
    : deadlines_(deadlines), thread_("for a save", [state = state_] { state->drop(); }) {}  // (4)

SaveWorker::~SaveWorker() { leave(); }

Result<void> SaveWorker::open(const SaveDirectory& directory) {
  return run("opening the directory", [directory, watch = thread_.watch()](WorkerState& state) -> Result<void> {
    state.open = [directory, watch] { return storage::open_watched(directory.open, watch, directory.name); };
    CAIRN_TRY_ASSIGN(state.storage, storage::retry_in_removed_directory(state.open));
    return {};
  });
}

Result<commit::SaveTicket> SaveWorker::claim(const commit::SaveIdentity& identity,
                                             const commit::ClaimOptions& options) {
  return carry_out_claim(
      [identity, options](WorkerState& state) { return commit::claim_checkpoint(*state.storage, identity, options); });
}

Result<commit::SaveTicket> SaveWorker::claim_model(const commit::SaveIdentity& identity,
                                                   const commit::ModelClaimOptions& options) {
  return carry_out_claim(
      [identity, options](WorkerState& state) { return commit::claim_model(*state.storage, identity, options); });
}

Result<commit::SaveTicket> SaveWorker::carry_out_claim(ClaimTask work) {
  return run("claiming the directory", [work = std::move(work)](WorkerState& state) -> Result<commit::SaveTicket> {
    CAIRN_TRY_ASSIGN(state.transaction, state.in_directory([&] { return work(state); }));
    state.transaction->set_fence(&state.fence);
    return state.transaction->ticket();
  });
}

Result<std::vector<WrittenFile>> SaveWorker::write(std::unique_ptr<RankWriter> writer, const SaveOptions& options) {
  has_written_ = true;
  // Only the calling thread may call options.interrupted: the write looks at the stop flag instead.
  data_file::WriteOptions write_options{options.durability, options.thread_count, options.direct_io};
  if (count_) count_->add_total(writer->file_bytes());
  return run("writing the files of this rank",
             [writer = std::move(writer), write_options, count = count_,
              watch = thread_.watch()](WorkerState& state) mutable -> Result<std::vector<WrittenFile>> {
               write_options.interrupted = [&watch] { return watch->stop.is_set(); };
               write_options.sources = &state.sources;
               if (count) write_options.bytes_written = &count->done;
               state.writer = std::move(writer);
               // The other ranks opened the directory before the coordinator's claim, which keeps it from removal.
               const auto enter = [&state] { return state.writer->enter(*state.storage); };
               CAIRN_TRY(state.transaction ? enter() : state.in_directory(enter));
               return state.writer->write(*state.storage, write_options);
             });
}

Result<void> SaveWorker::expect(std::vector<std::string> names) {
  return run("claiming the directory", [names = std::move(names)](WorkerState& state) mutable -> Result<void> {
    state.transaction->expect(std::move(names));
    return {};
  });
}

Result<void> SaveWorker::with_files(std::string_view phase, void (commit::RankFiles::*act)()) {
  if (!has_written_) return {};
  return run(phase, [act](WorkerState& state) -> Result<void> {
    if (state.writer) (state.writer->files().*act)();
    return {};
  });
}

Result<commit::CommitReport> SaveWorker::commit(std::string pickle, manifest::CommitRecord record,
                                                Durability durability) {
  const auto work = [pickle = std::move(pickle), record = std::move(record),
                     durability](commit::SaveTransaction& transaction) {
    return transaction.commit(pickle, record, durability);
  };
  return carry_out_commit(work, kMetadataName);
}

Result<commit::CommitReport> SaveWorker::commit_model(commit::ModelContent content, Durability durability) {
  const auto work = [content = std::move(content), durability](commit::SaveTransaction& transaction) {
    return transaction.commit(content, durability);
  };
  return carry_out_commit(work, safetensors::kIndexName);
}

Result<commit::CommitReport> SaveWorker::carry_out_commit(CommitTask work, std::string_view renamed) {
  struct CommitOutcome {
    Result<commit::CommitReport> report;
    bool may_have_committed;
  };
  may_have_committed_ = true;  // until the outcome is known
  Result<CommitOutcome> outcome = Error(ErrorCode::kInternal, "the commit was not tried");
  try {
    outcome = run("committing", [work = std::move(work)](WorkerState& state) -> Result<CommitOutcome> {
      // An exception must not hide a completed rename.
      Result<commit::CommitReport> report = attempt([&] { return work(*state.transaction); });
      return CommitOutcome{std::move(report), state.transaction->may_have_committed()};
    });
  } catch (...) {  // of `interrupted`: the exception must not hide a commit, or a possible commit
    if (given_up_ == GivenUp::kForGood) may_have_committed_ = false;
    if (!given_up_ || given_up_ == GivenUp::kForGood) throw;
    outcome = *reason_;
  }
  may_have_committed_ =
      outcome ? outcome->may_have_committed : given_up_.value_or(GivenUp::kForGood) != GivenUp::kForGood;
  if (outcome) return std::move(outcome->report);
  Error reason = std::move(outcome).error();
  if (given_up_ == GivenUp::kCommitted) return commit::CommitReport{{not_cleaned_up(reason)}};
  if (given_up_ != GivenUp::kUnknown) return reason;
  return std::move(reason).while_doing("renaming `" + std::string(renamed) +
                                       "`: it is unknown whether the save is or will be committed, look at the "
                                       "directory");
}

std::optional<Error> SaveWorker::carry_out(storage::WatchedThread::Task task, std::string_view phase) {
  if (thread_.is_of_a_fork()) return of_a_fork();
  if (reason_) return *reason_;
  if (auto posted = thread_.post(std::move(task)); !posted) return std::move(posted).error();  // (1)
  std::optional<Error> reason;
  try {
    reason = thread_.wait([this] { return judge(); });
  } catch (...) {  // of `interrupted`
    give_up(Error(ErrorCode::kCancelled, "an exception of the caller's function has ended the save"));
    throw;
  }
  if (reason) give_up(std::move(*reason).while_doing(phase));
  return reason_;
}

std::optional<Error> SaveWorker::judge() {
  if (interrupted_ && interrupted_()) thread_.interrupt();  // called again after true: may throw then
  if (auto stall = thread_.overdue(deadlines_)) return stall;
  const auto waited = thread_.interrupted_for();
  if (!waited) return std::nullopt;
  const auto hanging = operations()->overdue(shortened(deadlines_, *waited));
  if (!hanging) return std::nullopt;
  return Error(ErrorCode::kCancelled, "interrupted by the caller, while " + hanging->what + " has not returned");
}

void SaveWorker::give_up(const Error& reason) {
  reason_ = reason;
  given_up_ = state_->fence.give_up();  // (2)
  thread_.abandon();
  state_->sources.close();  // (3)
}

void SaveWorker::finish() {
  if (thread_.is_of_a_fork() || !thread_.is_running()) return;
  const auto dropped = run("withdrawing what the save has written", [](WorkerState& state) -> Result<void> {
    state.drop();
    return {};
  });
  if (!dropped) return;  // the storage hangs again: the abandoned thread withdraws the files later
  thread_.join();
  if (!reason_) reason_ = Error(ErrorCode::kInternal, "the save has ended");
}

void SaveWorker::leave() {
  if (thread_.is_of_a_fork()) return;
  interrupted_ = nullptr;
  thread_.interrupt();
  finish();
}

}  // namespace cairn::checkpointer
