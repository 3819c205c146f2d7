// Parallel: the same work on several threads while the calling thread listens for an interruption.
#pragma once

#include <cairn/result.h>

#include <atomic>
#include <cstddef>
#include <functional>

namespace cairn::os {

// Told to every worker: stop soon, somebody failed or the caller was interrupted. Thread-safe.
class StopFlag {
 public:
  bool is_set() const noexcept { return set_.load(std::memory_order_relaxed); }
  void set() noexcept { set_.store(true, std::memory_order_relaxed); }

 private:
  std::atomic<bool> set_{false};
};

// One for each core that this process may use, at most 8: beyond that, copies wait for memory and not for cores.
std::size_t useful_thread_count();

// Runs `work(worker, stop)` once on each of `thread_count` threads and waits for all of them. The first failure sets
// the flag and is returned. `interrupted`, if given, is asked on the calling thread every few milliseconds; once it
// says true the flag is set and the result is kCancelled. Exceptions of `work` (memory that ran out) end as kInternal.
Result<void> run_parallel(std::size_t thread_count, const std::function<bool()>& interrupted,
                          const std::function<Result<void>(std::size_t worker, StopFlag& stop)>& work);

}  // namespace cairn::os
