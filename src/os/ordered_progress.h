// OrderedProgress: counts numbered tasks that finish in any order; threads can wait until the first N are done.
//
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace cairn::os {

class OrderedProgress {
 public:
  explicit OrderedProgress(std::uint64_t count) : done_(count, false) {}
  // Marks a task as done. Returns the number of done tasks before the first open task.
  std::uint64_t mark(std::uint64_t index);
  // Returns true when all tasks of [0, count) are done, or false after abandon().
  bool wait_for_first(std::uint64_t count);
  // Ends all waits: a task will never be done.
  void abandon();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> done_;
  std::uint64_t first_open_ = 0;
  bool abandoned_ = false;
};

}  // namespace cairn::os
