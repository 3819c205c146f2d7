#include "os/ordered_progress.h"

namespace cairn::os {

std::uint64_t OrderedProgress::mark(std::uint64_t index) {
  const std::lock_guard lock(mutex_);
  done_[index] = true;
  while (first_open_ < done_.size() && done_[first_open_]) ++first_open_;
  changed_.notify_all();
  return first_open_;
}

bool OrderedProgress::wait_for_first(std::uint64_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return first_open_ >= count || abandoned_; });
  return !abandoned_;
}

void OrderedProgress::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  changed_.notify_all();
}

}  // namespace cairn::os
