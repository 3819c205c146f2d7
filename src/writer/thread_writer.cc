#include "writer/thread_writer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <thread>
#include <utility>

#include "os/start_thread.h"

namespace cairn::writer {
namespace {

constexpr std::chrono::milliseconds kJudgeInterval{100};

Error of_a_fork() {
  return Error(
      ErrorCode::kUnavailable,
      "this process is a forked child; the writer and its saves belong to its parent: make a new checkpointer here");
}

// A client's view of a save: passes requests to the thread, and waits for the answers.
class ThreadSave final : public WriterSave {
 public:
  explicit ThreadSave(std::shared_ptr<SaveThread> thread) : owned_(new Owned{std::move(thread)}) {}
  ~ThreadSave() override {
    if (is_of_a_fork()) {
      // In a child made by fork there is no thread to join.
      (void)owned_.release();
      return;
    }
    owned_->thread->abandon(Error(ErrorCode::kCancelled, "the save was dropped before its bytes were staged"));
  }
  ThreadSave(const ThreadSave&) = delete;
  ThreadSave& operator=(const ThreadSave&) = delete;

  Result<commit::SaveTicket> claim(const ClaimRequest& request, const std::function<void()>& meanwhile) override {
    if (is_of_a_fork()) return of_a_fork();
    // Shared by this call and the answer: the answering thread may still use the promise after this call has returned.
    const auto answer = std::make_shared<std::promise<Result<commit::SaveTicket>>>();
    owned_->thread->claim(request,
                          [answer](Result<commit::SaveTicket> ticket) { answer->set_value(std::move(ticket)); });
    if (meanwhile) meanwhile();
    return answer->get_future().get();
  }

  Result<void> begin(const SaveRequest& request) override {
    if (is_of_a_fork()) return of_a_fork();
    owned_->thread->begin(request);
    return {};
  }

  Result<void> staged() override { return is_of_a_fork() ? Result<void>(of_a_fork()) : owned_->thread->staged(); }

  void abandon(const Error& reason) override {
    if (!is_of_a_fork()) owned_->thread->abandon(reason);
  }

  commit::ProgressReport progress() const override {
    return is_of_a_fork() ? commit::ProgressReport() : owned_->thread->progress();
  }

 private:
  bool is_of_a_fork() const { return getpid() != process_; }

  pid_t process_ = getpid();
  struct Owned {
    std::shared_ptr<SaveThread> thread;  // shared with the writer, which joins the thread
  };
  std::unique_ptr<Owned> owned_;
};

}  // namespace

struct ThreadWriter::State {
  pid_t process = getpid();
  os::Priority priority;
  OpenDirectory open;
  CommitOrder order;
  std::mutex mutex;
  std::condition_variable_any started;
  std::vector<std::shared_ptr<SaveThread>> threads;  // shared with their saves
  std::jthread watch;                                // declared last: uses the other members

  // The caller holds the lock.
  void join_ended() {
    std::erase_if(threads, [](const std::shared_ptr<SaveThread>& thread) {
      if (!thread->has_ended()) return false;
      thread->join();
      return true;
    });
  }

  // Whether a save is in flight. The caller holds the lock. The number of threads does not tell: only start() drops
  // ended threads.
  bool has_save() const {
    return std::any_of(threads.begin(), threads.end(),
                       [](const std::shared_ptr<SaveThread>& thread) { return !thread->has_ended(); });
  }

  void judge_until(const std::stop_token& stop) {
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      if (!has_save()) {
        started.wait(lock, stop, [&] { return has_save(); });
        continue;
      }
      const std::vector<std::shared_ptr<SaveThread>> watched = threads;
      lock.unlock();  // ending a save may take time
      for (const auto& thread : watched) thread->judge();
      lock.lock();
      started.wait_for(lock, stop, kJudgeInterval, [] { return false; });
    }
  }
};

ThreadWriter::ThreadWriter(const os::Priority& priority, OpenDirectory open) : state_(std::make_unique<State>()) {
  state_->priority = priority;
  state_->open = std::move(open);
}

ThreadWriter::~ThreadWriter() {
  if (state_->process != getpid()) {
    (void)state_.release();
    return;
  }
  for (const auto& thread : state_->threads) {
    thread->abandon(Error(ErrorCode::kCancelled, "the writer was closed before the bytes were staged"));
  }
  for (const auto& thread : state_->threads) thread->join();
}

Result<std::unique_ptr<WriterSave>> ThreadWriter::start(Ended ended, Written written) {
  if (state_->process != getpid()) return of_a_fork();
  const std::lock_guard lock(state_->mutex);
  state_->join_ended();
  if (!state_->watch.joinable()) {
    const auto judge = [state = state_.get()](const std::stop_token& stop) { state->judge_until(stop); };
    CAIRN_TRY_ASSIGN(state_->watch, os::start_thread<std::jthread>("to watch the saves", judge));
  }
  const auto lower_priority = [priority = state_->priority] { os::set_priority(priority); };
  CAIRN_TRY_ASSIGN(auto thread, SaveThread::start(state_->order, {std::move(ended), std::move(written)}, lower_priority,
                                                  state_->open));
  state_->threads.push_back(thread);
  state_->started.notify_all();
  return std::unique_ptr<WriterSave>(std::make_unique<ThreadSave>(std::move(thread)));
}

}  // namespace cairn::writer
