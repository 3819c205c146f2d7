// SaveWorker: makes the storage calls of a synchronous save, on a separate thread.
//
// Cairn can't cancel a call that hangs in the kernel. Therefore the saving thread makes no storage calls: it gives
// tasks to the worker's thread, one at a time, and waits for each task. If a call exceeds its deadline, the save is
// given up and the worker's thread is detached. The steps stand at the top of save_worker.cc.
//
// Threads: one at a time. In a forked child the worker has no thread: every task fails with kUnavailable, and the
// destructor neither waits nor calls the storage.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/result.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "commit/metadata_commit.h"
#include "commit/model_commit.h"
#include "commit/save_fence.h"
#include "commit/save_transaction.h"
#include "os/gate.h"
#include "save/rank_writer.h"
#include "storage/operation_watch.h"
#include "storage/storage.h"

namespace cairn::checkpointer {

// The directory of a save.
struct SaveDirectory {
  std::string name;  // for error texts
  // Called on the worker's thread. The function owns all data that it uses.
  std::function<Result<std::unique_ptr<storage::Storage>>()> open;
};

// The state of the tasks. Only the worker's thread uses and destroys the state, except the first three members, which
// are thread-safe.
struct WorkerState {
  commit::SaveFence fence;
  os::Gate sources;  // open while the caller's tensors may be read
  std::atomic<bool> cancelled{false};
  std::unique_ptr<storage::Storage> storage;             // outlives `transaction` and `writer`
  std::unique_ptr<commit::SaveTransaction> transaction;  // null except at the coordinator
  std::unique_ptr<RankWriter> writer;

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

  // The tasks of a save, in this order.
  Result<void> open(const SaveDirectory& directory);
  // At the coordinator only. If the save fails, the transaction withdraws the files that it expects.
  Result<commit::SaveTicket> claim(const commit::SaveIdentity& identity, const commit::ClaimOptions& options);
  Result<commit::SaveTicket> claim_model(const commit::SaveIdentity& identity,
                                         const commit::ModelClaimOptions& options);
  // Uses of `options` the durability and the settings that affect only speed.
  Result<std::vector<WrittenFile>> write(std::unique_ptr<RankWriter> writer, const SaveOptions& options);
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
  // As finish(), but does not call `interrupted`, and waits for a hanging call only as long as after an interruption. A
  // detached thread withdraws the files when its call returns.
  void leave();

  // Runs a task on the worker's thread: returns the Result of `work(WorkerState&)`, and rethrows an exception of
  // `work`. If the save is given up before the task has ended, run() returns the reason; `phase` names the step in the
  // text
  // ("while ..."). Then `work` may run for ever: `work` owns all data that it uses, except the tensors, which it reads
  // only with a pass of `sources`.
  template <typename Work>
  auto run(std::string_view phase, Work work) -> std::invoke_result_t<Work, WorkerState&> {
    struct Call {
      Work work;
      std::optional<std::invoke_result_t<Work, WorkerState&>> result = {};
      std::exception_ptr exception = {};
    };
    const auto call = std::make_shared<Call>(Call{std::move(work)});  // shared with the worker's thread
    const auto task = [call](WorkerState& state) {
      try {
        call->result.emplace(call->work(state));
      } catch (...) {
        call->exception = std::current_exception();
      }
    };
    if (std::optional<Error> reason = carry_out(task, phase)) return *std::move(reason);
    if (call->exception) std::rethrow_exception(call->exception);
    return *std::move(call->result);
  }

  bool has_given_up() const { return given_up_.has_value(); }

  // The watch over the calls into the storage. For tasks that call a further storage: the calls get the deadlines.
  const std::shared_ptr<storage::OperationWatch>& operations();

 private:
  using Clock = std::chrono::steady_clock;
  using Task = std::function<void(WorkerState&)>;
  struct SharedState;
  // A forked child must not destroy these members: the thread does not exist in the child, and may have held the mutex.
  struct Owned {
    std::shared_ptr<SharedState> shared;  // shared with the thread
    std::thread thread;                   // joinable from the first task until the end
  };
  bool is_of_a_fork() const { return getpid() != process_; }
  SharedState& shared() { return *owned_->shared; }
  static void work(SharedState& shared);
  Result<void> start();
  std::optional<Error> carry_out(Task task, std::string_view phase);
  using ClaimTask = std::function<Result<std::unique_ptr<commit::SaveTransaction>>(WorkerState&)>;
  using CommitTask = std::function<Result<commit::CommitReport>(commit::SaveTransaction&)>;
  Result<commit::SaveTicket> carry_out_claim(ClaimTask work);
  Result<commit::CommitReport> carry_out_commit(CommitTask work, std::string_view renamed);
  std::optional<Error> judge();
  void give_up(const Error& reason);

  SaveDeadlines deadlines_;
  std::function<bool()> interrupted_;
  std::optional<Clock::time_point> interrupted_at_;
  pid_t process_ = getpid();
  std::unique_ptr<Owned> owned_;
  std::optional<commit::SaveFence::GivenUp> given_up_;
  bool may_have_committed_ = false;
  std::optional<Error> reason_;  // the error of all later tasks
};

}  // namespace cairn::checkpointer
