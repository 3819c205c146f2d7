// OrderedProgress: counts things that are done in whatever order, and lets others wait for the first N to be.
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
  // Returns how many of the first are done without a gap.
  std::uint64_t mark(std::uint64_t index);
  // Returns once all of [0, count) are marked, or somebody gave up.
  void wait_for_first(std::uint64_t count);
  // Nobody shall wait any more: one of them will never be done.
  void abandon();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> done_;
  std::uint64_t first_open_ = 0;
  bool abandoned_ = false;
};

}  // namespace cairn::os
