// 1. The caller puts a task into the shared state and waits. The worker's thread carries out the task.
// 2. While waiting, the caller ages the calls into the storage (storage/operation_watch.h) and calls `interrupted`.
// 3. A call exceeds its deadline: the save is given up. From now on the worker's thread uses only the shared state.
// 4. SaveFence decides whether the save may still be committed: only if the rename of `.metadata` has begun.
// 5. The caller closes the gate of the sources: pending copies out of the caller's tensors are waited for, and no
//    further copy begins. Therefore the tensors may be freed when the save returns. The hanging thread reads only
//    buffers of the worker.
// 6. When the hanging call returns, the thread ends its task early, withdraws the files that were not committed, and
//    ends.
#include "save/save_worker.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "commit/progress_tracker.h"
#include "core/attempt.h"
#include "os/start_thread.h"
#include "storage/operation_watch.h"
#include "storage/watched_storage.h"

namespace cairn::checkpointer {
namespace {

using GivenUp = commit::SaveFence::GivenUp;

constexpr std::chrono::milliseconds kPollInterval{20};
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
}

// The state that the caller and the worker's thread share.
struct SaveWorker::SharedState {
  // Shared with the storage and its files.
  std::shared_ptr<storage::OperationWatch> operations = std::make_shared<storage::OperationWatch>();
  WorkerState state;

  std::mutex mutex;
  std::condition_variable changed;
  Task task;  // null when done
  bool closed = false;

  // The worker's thread ends when it has no task.
  void close() {
    const std::lock_guard lock(mutex);
    closed = true;
    changed.notify_all();
  }
};

SaveWorker::SaveWorker(const SaveDeadlines& deadlines)
    : deadlines_(deadlines), owned_(new Owned{std::make_shared<SharedState>(), {}}) {}

SaveWorker::~SaveWorker() {
  if (is_of_a_fork()) {
    (void)owned_.release();
    return;
  }
  leave();
}

const std::shared_ptr<storage::OperationWatch>& SaveWorker::operations() { return shared().operations; }

void SaveWorker::work(SharedState& shared) {
  std::unique_lock lock(shared.mutex);
  while (true) {
    shared.changed.wait(lock, [&shared] { return shared.task || shared.closed; });
    if (!shared.task) return;
    lock.unlock();
    shared.task(shared.state);
    lock.lock();
    shared.task = nullptr;
    shared.changed.notify_all();
  }
}

Result<void> SaveWorker::start() {
  const auto body = [shared = owned_->shared] {
    work(*shared);
    shared->state.drop();  // (6)
  };
  CAIRN_TRY_ASSIGN(owned_->thread, os::start_thread<std::thread>("for a save", body));
  return {};
}

Result<void> SaveWorker::open(const SaveDirectory& directory) {
  return run("opening the directory",
             [directory, operations = shared().operations](WorkerState& state) -> Result<void> {
               const storage::OperationWatch::Call call(*operations, storage::OperationKind::kNames, "opening",
                                                        directory.name);
               CAIRN_TRY_ASSIGN(std::unique_ptr<storage::Storage> opened, directory.open());
               state.storage = std::make_unique<storage::WatchedStorage>(std::move(opened), operations);
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
    CAIRN_TRY_ASSIGN(state.transaction, work(state));
    state.transaction->set_fence(&state.fence);
    return state.transaction->ticket();
  });
}

Result<std::vector<WrittenFile>> SaveWorker::write(std::unique_ptr<RankWriter> writer, const SaveOptions& options) {
  // Only the calling thread may call options.interrupted: the write watches `cancelled` instead.
  data_file::WriteOptions write_options{options.durability, options.thread_count, options.direct_io};
  return run(
      "writing the files of this rank",
      [writer = std::move(writer), write_options](WorkerState& state) mutable -> Result<std::vector<WrittenFile>> {
        write_options.interrupted = [&state] { return state.cancelled.load(); };
        write_options.sources = &state.sources;
        state.writer = std::move(writer);
        return state.writer->write(*state.storage, write_options);
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

std::optional<Error> SaveWorker::carry_out(Task task, std::string_view phase) {
  if (is_of_a_fork()) return of_a_fork();
  if (reason_) return *reason_;
  if (!owned_->thread.joinable()) {
    if (auto started = start(); !started) return std::move(started).error();
  }
  shared().operations->tick(Clock::now());  // the time before the task must not count for a call
  std::unique_lock lock(shared().mutex);
  shared().task = std::move(task);  // (1)
  shared().changed.notify_all();
  const auto is_done = [this] { return shared().task == nullptr; };
  while (!shared().changed.wait_for(lock, kPollInterval, is_done)) {  // (2)
    lock.unlock();
    std::optional<Error> reason;
    try {
      reason = judge();
    } catch (...) {  // of `interrupted`
      give_up(Error(ErrorCode::kCancelled, "an exception of the caller's function has ended the save"));
      throw;
    }
    lock.lock();
    if (!reason || is_done()) continue;
    lock.unlock();
    give_up(std::move(*reason).while_doing(phase));
    return *reason_;
  }
  return std::nullopt;
}

std::optional<Error> SaveWorker::judge() {
  const storage::OperationWatch& operations = *shared().operations;
  shared().operations->tick(Clock::now());
  const bool interrupted = interrupted_ && interrupted_();  // called again after true: may throw then
  if (interrupted && !interrupted_at_) {
    interrupted_at_ = Clock::now();
    shared().state.cancelled = true;
  }
  if (const auto overdue = operations.overdue(deadlines_)) return storage::stall(*overdue, deadlines_);
  if (!interrupted_at_) return std::nullopt;
  const auto hanging = operations.overdue(shortened(deadlines_, Clock::now() - *interrupted_at_));
  if (!hanging) return std::nullopt;
  return Error(ErrorCode::kCancelled, "interrupted by the caller, while " + hanging->what + " has not returned");
}

void SaveWorker::give_up(const Error& reason) {
  reason_ = reason;  // (3)
  owned_->thread.detach();
  given_up_ = shared().state.fence.give_up();  // (4)
  shared().state.cancelled = true;
  shared().close();
  shared().state.sources.close();  // (5)
}

void SaveWorker::finish() {
  if (is_of_a_fork() || !owned_->thread.joinable()) return;
  const auto dropped = run("withdrawing what the save has written", [](WorkerState& state) -> Result<void> {
    state.drop();
    return {};
  });
  if (!dropped) return;  // the storage hangs again: the detached thread withdraws the files later
  shared().close();
  owned_->thread.join();
  if (!reason_) reason_ = Error(ErrorCode::kInternal, "the save has ended");
}

void SaveWorker::leave() {
  interrupted_ = nullptr;
  if (!interrupted_at_) interrupted_at_ = Clock::now();
  finish();
}

}  // namespace cairn::checkpointer
