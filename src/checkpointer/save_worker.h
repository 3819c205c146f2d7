// SaveWorker: the part of a synchronous save that calls the storage, on a thread of its own.
//
// A call that hangs in the kernel can't be cancelled. So the thread that saves never makes one: it gives tasks to the
// worker's thread, one at a time, and waits for each. If a call lasts longer than its deadline, the save is given up
// and the worker's thread is left alone. The steps stand at the top of save_worker.cc.
//
// One thread at a time. In a process made by fork the worker has no thread: every task fails with kUnavailable there,
// and the end of the worker neither waits nor touches the storage.
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

#include "checkpointer/rank_writer.h"
#include "commit/save_fence.h"
#include "commit/save_transaction.h"
#include "os/gate.h"
#include "storage/storage.h"

namespace cairn::checkpointer {

// The directory of a save.
struct SaveDirectory {
  std::string name;  // for errors
  // Called on the worker's thread, so it owns all that it uses.
  std::function<Result<std::unique_ptr<storage::Storage>>()> open;
};

// What tasks work on. Used and destroyed by the worker's thread alone, but for the first three, which are thread-safe.
struct WorkerState {
  commit::SaveFence fence;
  os::Gate sources;  // open as long as the caller's tensors may be read
  std::atomic<bool> cancelled{false};
  std::unique_ptr<storage::Storage> storage;             // outlives the rest
  std::unique_ptr<commit::SaveTransaction> transaction;  // of the coordinator
  std::unique_ptr<RankWriter> writer;

  // Destroys the last three, in this order: what was not committed is withdrawn.
  void drop();
};

// The warning of a save that is committed, but whose storage hung for the rest.
std::string not_cleaned_up(const Error& reason);

class SaveWorker {
 public:
  explicit SaveWorker(const SaveDeadlines& deadlines);
  // As leave().
  ~SaveWorker();
  SaveWorker(const SaveWorker&) = delete;
  SaveWorker& operator=(const SaveWorker&) = delete;

  // Asked every few milliseconds, on the calling thread, while a task is under way. Once it has said true, a write
  // fails with kCancelled. From then on a sync that does not return is waited for 30 seconds, and any other call two
  // seconds; then the save is given up. If the function throws, the first time or later, the save is given up at once.
  // Empty: the save can't be interrupted.
  void set_interrupted(std::function<bool()> interrupted) { interrupted_ = std::move(interrupted); }

  // The tasks of a save, in this order.
  Result<void> open(const SaveDirectory& directory);
  // The coordinator's. The transaction withdraws what it expects if the save fails.
  Result<commit::SaveTicket> claim(const commit::SaveIdentity& identity, const commit::ClaimOptions& options);
  // Of `options` count durability and what changes only speed.
  Result<std::vector<WrittenFile>> write(std::unique_ptr<RankWriter> writer, const SaveOptions& options);
  // The coordinator's. If the storage hangs after the commit was synced, the save has succeeded, with a warning. An
  // exception of the caller's function is rethrown only if the save is not committed and will not be: otherwise it
  // becomes that warning, or the error that says that the outcome is unknown.
  Result<commit::CommitReport> commit(std::string pickle, manifest::CommitRecord record, Durability durability);
  // After commit(), whether it has returned or thrown: if so, no file of the save is withdrawn any more.
  bool may_have_committed() const { return may_have_committed_; }
  // Ends the thread: what was not committed is withdrawn, unless the storage hangs for that too. Called again, does
  // nothing.
  void finish();
  // As finish(), but the caller's function is not asked, and a call that hangs is waited for as after an interruption.
  // A thread that is left alone withdraws by itself when its call returns.
  void leave();

  // Any other task: what `work(WorkerState&)`, a Result, returns; an exception comes as it is. Or why the save was
  // given up meanwhile, or earlier: `phase` says in which step ("while ..."). Then `work` may go on for ever, so it
  // owns all that it uses but the tensors that are read inside of `sources`.
  template <typename Work>
  auto run(std::string_view phase, Work work) -> std::invoke_result_t<Work, WorkerState&> {
    struct Call {
      Work work;
      std::optional<std::invoke_result_t<Work, WorkerState&>> result = {};
      std::exception_ptr exception = {};
    };
    const auto call = std::make_shared<Call>(Call{std::move(work)});  // owned by the worker's thread too
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

 private:
  using Clock = std::chrono::steady_clock;
  using Task = std::function<void(WorkerState&)>;
  struct SharedState;
  // What a process made by fork must not destroy: the thread is not there to be joined, and may have held the mutex.
  struct Owned {
    std::shared_ptr<SharedState> shared;  // owned by the thread too
    std::thread thread;                   // not joinable before the first task, and after the end
  };
  bool is_of_a_fork() const { return getpid() != process_; }
  SharedState& shared() { return *owned_->shared; }
  static void work(SharedState& shared);
  Result<void> start();
  std::optional<Error> carry_out(Task task, std::string_view phase);
  std::optional<Error> judge();
  void give_up(const Error& reason);

  SaveDeadlines deadlines_;
  std::function<bool()> interrupted_;
  std::optional<Clock::time_point> interrupted_at_;
  pid_t process_ = getpid();
  std::unique_ptr<Owned> owned_;
  std::optional<commit::SaveFence::GivenUp> given_up_;
  bool may_have_committed_ = false;
  std::optional<Error> reason_;  // why there are no tasks any more
};

}  // namespace cairn::checkpointer
