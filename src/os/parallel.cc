#include "os/parallel.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "os/start_thread.h"

namespace cairn::os {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{20};

// The state shared by the workers and the caller.
class ThreadTeam {
 public:
  explicit ThreadTeam(std::size_t size) : running_(size) {}

  void finish(Result<void> result) {
    const std::lock_guard lock(mutex_);
    if (!result && !failure_) {
      failure_ = std::move(result).error();
      stop_.set();
    }
    --running_;
    changed_.notify_all();
  }

  void wait(const std::function<bool()>& interrupted) {
    std::unique_lock lock(mutex_);
    while (running_ != 0) {
      if (!interrupted || cancelled_) {
        changed_.wait(lock);
        continue;
      }
      changed_.wait_for(lock, kProgressInterval);
      lock.unlock();  // the caller's function may take long and may take locks
      bool stop_now = false;
      try {
        stop_now = interrupted();
      } catch (...) {
        stop_.set();  // the exception waits for the workers
        throw;
      }
      lock.lock();
      if (stop_now) {
        cancelled_ = true;
        stop_.set();
      }
    }
  }

  Result<void> result() && {
    if (cancelled_) return Error(ErrorCode::kCancelled, "interrupted by the caller");
    if (failure_) return std::move(*failure_);
    return {};
  }

  StopFlag& stop() { return stop_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t running_;
  bool cancelled_ = false;
  std::optional<Error> failure_;
  StopFlag stop_;
};

void start_workers(ThreadTeam& team, std::size_t thread_count,
                   const std::function<Result<void>(std::size_t, StopFlag&)>& work,
                   std::vector<std::jthread>& threads) {
  for (std::size_t worker = 0; worker < thread_count; ++worker) {
    const auto body = [&team, &work, worker] {
      try {
        team.finish(work(worker, team.stop()));
      } catch (const std::exception& exception) {
        team.finish(Error(ErrorCode::kInternal, std::string("a worker failed: ") + exception.what()));
      }
    };
    Result<std::jthread> started = start_thread<std::jthread>("to work", body);
    if (started) {
      threads.push_back(std::move(*started));
    } else {  // no more threads: the running threads can do the work
      team.finish(threads.empty() ? Result<void>(std::move(started).error()) : Result<void>());
    }
  }
}

}  // namespace

std::size_t useful_thread_count() {
  constexpr std::size_t kMost = 8;
  return std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kMost);
}

Result<void> run_parallel(std::size_t thread_count, const std::function<bool()>& interrupted,
                          const std::function<Result<void>(std::size_t, StopFlag&)>& work) {
  ThreadTeam team(thread_count);
  std::vector<std::jthread> threads;
  threads.reserve(thread_count);
  start_workers(team, thread_count, work, threads);
  team.wait(interrupted);
  threads.clear();
  return std::move(team).result();
}

}  // namespace cairn::os
