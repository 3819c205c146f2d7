// WatchedThread: a thread whose calls into a storage may hang, watched by the thread of its owner.
//
// 1. Start. The first task starts the thread, with all signals blocked. A task owns everything that it uses, or shares
//    it by shared pointers.
// 2. Progress. The storages of the tasks register each call in the thread's OperationWatch (watched_storage.h). The
//    owner's thread ages the pending calls, at least every two seconds, by overdue() or tick(). A call that returns is
//    progress, however slow the storage is.
// 3. Stall deadline. overdue() finds a call that is older than the deadline of its kind: the owner abandons the thread.
// 4. Interruption. interrupt() sets the stop flag, which the tasks look at between two pieces of work. The owner
//    decides how long it waits afterwards, and then abandons the thread.
// 5. Abandonment. abandon() sets the stop flag and detaches the thread, and returns at once. The thread takes no
//    further task. What a task reads of the owner's caller must be closed to the task separately (os/gate.h).
// 6. End. When the hanging call returns, the abandoned thread ends its task early, drops what the task owns, calls
//    `at_end`, and ends. If the call never returns, the thread and what its task owns stay until the process ends.
//    A thread that does not hang ends in the same order: join() waits for its end.
//
// Owned by the thread and its WatchedThread together: the Watch, the task, and `at_end`. Hence an abandoned thread uses
// no memory of its owner. In a forked child the thread does not exist and may have held a lock: there the destructor
// frees nothing, and is_of_a_fork() is true.
//
// Thread-safe, except that one thread at a time posts and waits.
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "os/parallel.h"
#include "storage/operation_watch.h"

namespace cairn::storage {

// The state that the owner's thread and the working threads share. Thread-safe.
struct Watch {
  os::StopFlag stop;                         // the owner was interrupted, or waits no longer
  std::atomic<std::uint64_t> bytes_done{0};  // of a watched call (watched_call.h)
  std::atomic<std::uint64_t> bytes_total{0};
  // Storages and files share the ownership.
  std::shared_ptr<OperationWatch> operations = std::make_shared<OperationWatch>();
};

class WatchedThread {
 public:
  using Clock = std::chrono::steady_clock;
  using Task = std::function<void()>;  // must not throw
  // The reason to wait no longer; nullopt: wait on.
  using Judge = std::function<std::optional<Error>()>;

  // `purpose`: of start_thread(). `at_end` is called on the thread, once it takes no further task; may be empty.
  explicit WatchedThread(const char* purpose, Task at_end = {});
  // Calls abandon(). May run on the thread itself, when a task drops the last owner.
  ~WatchedThread();
  WatchedThread(const WatchedThread&) = delete;
  WatchedThread& operator=(const WatchedThread&) = delete;

  // (1) Gives the thread a task; there must be no other. kUnavailable if no thread can be started.
  Result<void> post(Task task);
  // (2) Waits until the task is done and dropped, and calls `judge` every 20 ms, on the calling thread. Returns the
  // reason of `judge`, unless the task is done meanwhile. The owner then abandons the thread; so it does if `judge`
  // throws.
  std::optional<Error> wait(const Judge& judge);
  // (2), (3) Ages the pending calls. The error if a call exceeds its deadline.
  std::optional<Error> overdue(const SaveDeadlines& deadlines);
  void tick(Clock::time_point now) { watch()->operations->tick(now); }
  // (4)
  void interrupt();
  // The time since the first interrupt(); nullopt before.
  std::optional<Clock::duration> interrupted_for() const;
  bool is_stopped() const { return watch()->stop.is_set(); }
  // (5)
  void abandon();
  // The thread ends after its task.
  void close();
  // (6) Waits for the end of the task and of the thread. Does nothing after abandon().
  void join();

  // Whether there is a thread that was neither joined nor abandoned.
  bool is_running() const;
  bool is_of_a_fork() const { return getpid() != process_; }
  const std::shared_ptr<Watch>& watch() const;

 private:
  struct Shared;
  struct Owned {
    std::shared_ptr<Shared> shared;  // shared with the thread
    std::thread thread;              // guarded by the mutex of `shared`
  };
  static void work(Shared& shared);

  pid_t process_ = getpid();
  std::unique_ptr<Owned> owned_;  // a forked child must not destroy it
};

// Runs `work` as a task of a WatchedThread: returns the result of `work`, or rethrows its exception. `carry_out(task)`
// posts the task and waits; if it returns an error, the thread may still run `work`, and drops `work` itself.
template <typename Work, typename CarryOut>
auto outcome_of(Work work, const CarryOut& carry_out) -> std::invoke_result_t<Work&> {
  struct Call {
    Work work;
    std::optional<std::invoke_result_t<Work&>> result = {};
    std::exception_ptr exception = {};
  };
  const auto call = std::make_shared<Call>(Call{std::move(work)});  // shared with the thread
  const auto task = [call] {
    try {
      call->result.emplace(call->work());
    } catch (...) {
      call->exception = std::current_exception();
    }
  };
  if (std::optional<Error> reason = carry_out(task)) return *std::move(reason);
  if (call->exception) std::rethrow_exception(call->exception);
  return *std::move(call->result);
}

}  // namespace cairn::storage
