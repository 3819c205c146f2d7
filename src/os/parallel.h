// Parallel: runs work on several threads, while the calling thread checks for an interruption.
#pragma once

#include <cairn/result.h>

#include <atomic>
#include <cstddef>
#include <functional>

namespace cairn::os {

// Shared by all workers; once set, the workers stop soon. Set by the first failure or by an interruption. Thread-safe.
class StopFlag {
 public:
  bool is_set() const noexcept { return set_.load(std::memory_order_relaxed); }
  void set() noexcept { set_.store(true, std::memory_order_relaxed); }

 private:
  std::atomic<bool> set_{false};
};

// The number of cores available to the process, at most 8: more threads would wait for memory, not for cores.
std::size_t useful_thread_count();

// Runs `work(worker, stop)` once on each of `thread_count` threads, and waits for all threads. The first failure sets
// the flag and is returned. If given, `interrupted` is called on the calling thread every few milliseconds; when
// `interrupted` returns true, the flag is set and the result is kCancelled. An exception of `work` (such as bad_alloc)
// becomes kInternal.
Result<void> run_parallel(std::size_t thread_count, const std::function<bool()>& interrupted,
                          const std::function<Result<void>(std::size_t worker, StopFlag& stop)>& work);

}  // namespace cairn::os
