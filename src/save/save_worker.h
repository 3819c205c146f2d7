// SaveWorker: makes the storage calls of a synchronous save, on a separate thread.
//
// The saving thread makes no storage calls: it gives tasks to the worker's thread, one at a time, and waits for each
// task. If a call exceeds its deadline, the save is given up and the worker's thread is abandoned. The steps stand at
// the top of storage/watched_thread.h and of save_worker.cc.
//
// Threads: one at a time. In a forked child the worker has no thread: every task fails with kUnavailable, and the
// destructor neither waits nor calls the storage.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/result.h>
#include <cairn/save.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "commit/metadata_commit.h"
#include "commit/model/model_commit.h"
#include "commit/save_fence.h"
#include "commit/save_transaction.h"
#include "core/work_count.h"
#include "os/gate.h"
#include "save/rank_writer.h"
#include "storage/removed_directory.h"
#include "storage/storage.h"
#include "storage/watched_thread.h"

namespace cairn::checkpointer {

// The directory of a save.
struct SaveDirectory {
  std::string name;  // for error texts
  // Called on the worker's thread, and again if the directory is removed before the save has a file in it. The function
  // owns all data that it uses.
  std::function<Result<std::unique_ptr<storage::Storage>>()> open;
};

// The state of the tasks. Only the worker's thread uses the state, except the first two members, which are thread-safe.
struct WorkerState {
  commit::SaveFence fence;
  os::Gate sources;  // open while the caller's tensors may be read
  std::function<Result<std::unique_ptr<storage::Storage>>()> open;
  std::unique_ptr<storage::Storage> storage;             // outlives `transaction` and `writer`
  std::unique_ptr<commit::SaveTransaction> transaction;  // null except at the coordinator
  std::unique_ptr<RankWriter> writer;

  // Returns the result of `work()`, which makes the first file or folder in `storage`. If the directory was removed,
  // opens `storage` again before the next call of `work`. Nothing may use the old `storage`.
  template <typename Work>
  auto in_directory(Work work) {
    bool is_opened = true;
    return storage::retry_in_removed_directory([&]() -> decltype(work()) {
      if (!is_opened) {
        CAIRN_TRY_ASSIGN(storage, open());
      }
      is_opened = false;
      return work();
    });
  }
  // Destroys `writer`, `transaction` and `storage`, in this order. Files that were not committed are withdrawn.
  void drop();
};

// The warning of a save that is committed, but whose storage hung during the clean-up.
std::string not_cleaned_up(const Error& reason);

class SaveWorker {
 public:
  explicit SaveWorker(const SaveDeadlines& deadlines);
  // Calls leave().
  ~SaveWorker();
  SaveWorker(const SaveWorker&) = delete;
  SaveWorker& operator=(const SaveWorker&) = delete;

  // `interrupted` is called every few milliseconds, on the calling thread, while a task is running. After `interrupted`
  // has returned true, writes fail with kCancelled. From then on a pending sync has 30 seconds to return, and a pending
  // call of another kind 2 seconds; then the save is given up. If `interrupted` throws, at any call, the save is given
  // up at once. Empty: the save can't be interrupted.
  void set_interrupted(std::function<bool()> interrupted) { interrupted_ = std::move(interrupted); }

  // Of write(): the bytes of the files. Null: they are not counted.
  void count_into(std::shared_ptr<WorkCount> count) { count_ = std::move(count); }

  // The tasks of a save, in this order.
  Result<void> open(const SaveDirectory& directory);
  // At the coordinator only. If the save fails, the transaction withdraws the files that expect() names.
  Result<commit::SaveTicket> claim(const commit::SaveIdentity& identity, const commit::ClaimOptions& options);
  Result<commit::SaveTicket> claim_model(const commit::SaveIdentity& identity,
                                         const commit::ModelClaimOptions& options);
  // After the claim, before a rank can publish a file: the final names of the files of all ranks.
  Result<void> expect(std::vector<std::string> names);
  // Uses of `options` the durability and the settings that affect only speed.
  Result<std::vector<WrittenFile>> write(std::unique_ptr<RankWriter> writer, const SaveOptions& options);
  // As in RankFiles. Without a preceding write() the functions do nothing.
  Result<void> hand_over_files() { return with_files("handing over its files", &commit::RankFiles::hand_over); }
  Result<void> withdraw_files() { return with_files("withdrawing its files", &commit::RankFiles::withdraw); }
  Result<void> remove_own_folder() {
    return with_files("removing its private folder", &commit::RankFiles::remove_own_folder);
  }
  // At the coordinator only. If the storage hangs after the commit was synced, the save has succeeded, with a warning.
  // An exception of `interrupted` is rethrown only if the save is not committed and never will be. Otherwise commit()
  // drops the exception, and returns the warning or the error that the outcome is unknown.
  Result<commit::CommitReport> commit(std::string pickle, manifest::CommitRecord record, Durability durability);
  // As commit(), of a model.
  Result<commit::CommitReport> commit_model(commit::ModelContent content, Durability durability);
  // Valid after commit() has returned or thrown. True: the save withdraws no files any more.
  bool may_have_committed() const { return may_have_committed_; }
  // Withdraws the files that were not committed, unless the storage hangs meanwhile, and ends the thread. A second call
  // does nothing.
  void finish();
  // As finish(), but does not call `interrupted`, and waits for a hanging call only as long as after an interruption.
  // An abandoned thread withdraws the files when its call returns.
  void leave();
  // After a success leave(): an exception of `interrupted` would hide the commit. After a failure finish(), which
  // withdraws the files before the caller gets the error.
  void end(bool has_succeeded) { has_succeeded ? leave() : finish(); }

  // Runs a task on the worker's thread: returns the Result of `work(WorkerState&)`, and rethrows an exception of
  // `work`. If the save is given up before the task has ended, run() returns the reason; `phase` names the step in the
  // text ("while ..."). Then `work` may run for ever: `work` owns all data that it uses, except the tensors, which it
  // reads only with a pass of `sources`.
  template <typename Work>
  auto run(std::string_view phase, Work work) -> std::invoke_result_t<Work, WorkerState&> {
    return storage::outcome_of(
        [state = state_, work = std::move(work)]() mutable { return work(*state); },
        [this, phase](storage::WatchedThread::Task task) { return carry_out(std::move(task), phase); });
  }

  bool has_given_up() const { return given_up_.has_value(); }

  // The watch over the calls into the storage. For tasks that call another storage: the calls get the deadlines.
  const std::shared_ptr<storage::OperationWatch>& operations() const { return thread_.watch()->operations; }

 private:
  Result<void> with_files(std::string_view phase, void (commit::RankFiles::*act)());
  std::optional<Error> carry_out(storage::WatchedThread::Task task, std::string_view phase);
  using ClaimTask = std::function<Result<std::unique_ptr<commit::SaveTransaction>>(WorkerState&)>;
  using CommitTask = std::function<Result<commit::CommitReport>(commit::SaveTransaction&)>;
  Result<commit::SaveTicket> carry_out_claim(ClaimTask work);
  Result<commit::CommitReport> carry_out_commit(CommitTask work, std::string_view renamed);
  std::optional<Error> judge();
  void give_up(const Error& reason);

  SaveDeadlines deadlines_;
  std::function<bool()> interrupted_;
  // Shared with the thread, also through its `at_end`: the caller never destroys what a task uses.
  std::shared_ptr<WorkerState> state_ = std::make_shared<WorkerState>();
  storage::WatchedThread thread_;
  std::optional<commit::SaveFence::GivenUp> given_up_;
  bool may_have_committed_ = false;
  bool has_written_ = false;          // write() was called
  std::optional<Error> reason_;       // the error of all later tasks
  std::shared_ptr<WorkCount> count_;  // shared with the thread, and with the caller
};

}  // namespace cairn::checkpointer
