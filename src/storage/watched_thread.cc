#include "storage/watched_thread.h"

#include <condition_variable>
#include <mutex>

#include "os/start_thread.h"

namespace cairn::storage {
namespace {

constexpr std::chrono::milliseconds kPollInterval{20};

}  // namespace

struct WatchedThread::Shared {
  const char* purpose;
  Task at_end;
  const std::shared_ptr<Watch> watch = std::make_shared<Watch>();

  std::mutex mutex;
  std::condition_variable changed;
  Task task;                // null once the thread has taken the task
  bool is_pending = false;  // the task is not done
  bool is_closed = false;   // the thread takes no further task
  std::optional<Clock::time_point> interrupted_at;
};

WatchedThread::WatchedThread(const char* purpose, Task at_end) : owned_(new Owned{std::make_shared<Shared>(), {}}) {
  owned_->shared->purpose = purpose;
  owned_->shared->at_end = std::move(at_end);
}

WatchedThread::~WatchedThread() {
  if (is_of_a_fork()) {
    (void)owned_.release();
    return;
  }
  abandon();
}

const std::shared_ptr<Watch>& WatchedThread::watch() const { return owned_->shared->watch; }

void WatchedThread::work(Shared& shared) {
  std::unique_lock lock(shared.mutex);
  while (true) {
    shared.changed.wait(lock, [&shared] { return shared.task || shared.is_closed; });
    if (!shared.task) break;
    {
      const Task task = std::exchange(shared.task, nullptr);
      lock.unlock();
      task();
    }  // dropped without the lock: the task may be the last owner of the WatchedThread
    lock.lock();
    shared.is_pending = false;
    shared.changed.notify_all();
  }
  lock.unlock();
  if (shared.at_end) shared.at_end();  // (6)
}

Result<void> WatchedThread::post(Task task) {
  Shared& shared = *owned_->shared;
  watch()->operations->tick(Clock::now());  // the time before the task must not count for a call
  const std::lock_guard lock(shared.mutex);
  if (shared.is_closed) return Error(ErrorCode::kInternal, "a task for a thread that has ended");
  if (!owned_->thread.joinable()) {  // (1)
    CAIRN_TRY_ASSIGN(owned_->thread,
                     os::start_thread<std::thread>(shared.purpose, [kept = owned_->shared] { work(*kept); }));
  }
  shared.task = std::move(task);
  shared.is_pending = true;
  shared.changed.notify_all();
  return {};
}

std::optional<Error> WatchedThread::wait(const Judge& judge) {
  Shared& shared = *owned_->shared;
  std::unique_lock lock(shared.mutex);
  const auto is_done = [&shared] { return !shared.is_pending; };
  while (!shared.changed.wait_for(lock, kPollInterval, is_done)) {  // (2)
    lock.unlock();
    std::optional<Error> reason = judge();
    lock.lock();
    if (reason && !is_done()) return reason;
  }
  return std::nullopt;
}

std::optional<Error> WatchedThread::overdue(const SaveDeadlines& deadlines) {
  tick(Clock::now());
  const std::optional<PendingOperation> overdue = watch()->operations->overdue(deadlines);
  return overdue ? std::optional(stall(*overdue, deadlines)) : std::nullopt;  // (3)
}

void WatchedThread::interrupt() {
  Shared& shared = *owned_->shared;
  const std::lock_guard lock(shared.mutex);
  if (!shared.interrupted_at) shared.interrupted_at = Clock::now();
  shared.watch->stop.set();  // (4)
}

std::optional<WatchedThread::Clock::duration> WatchedThread::interrupted_for() const {
  Shared& shared = *owned_->shared;
  const std::lock_guard lock(shared.mutex);
  return shared.interrupted_at ? std::optional(Clock::now() - *shared.interrupted_at) : std::nullopt;
}

void WatchedThread::close() {
  const std::lock_guard lock(owned_->shared->mutex);
  owned_->shared->is_closed = true;
  owned_->shared->changed.notify_all();
}

void WatchedThread::abandon() {
  watch()->stop.set();
  close();
  const std::lock_guard lock(owned_->shared->mutex);
  if (owned_->thread.joinable()) owned_->thread.detach();  // (5)
}

void WatchedThread::join() {
  close();
  std::thread thread;
  {
    const std::lock_guard lock(owned_->shared->mutex);
    thread = std::move(owned_->thread);
  }
  if (thread.joinable()) thread.join();  // (6)
}

bool WatchedThread::is_running() const {
  const std::lock_guard lock(owned_->shared->mutex);
  return owned_->thread.joinable();
}

}  // namespace cairn::storage
