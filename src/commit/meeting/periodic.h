// Periodic: returns true once per interval. For a check more expensive than the loop around the check.
#pragma once

#include <chrono>

namespace cairn::commit {

class Periodic {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Periodic(Clock::duration interval) : interval_(interval) {}

  bool is_due() {
    const Clock::time_point now = Clock::now();
    if (now < next_) return false;
    postpone(now);
    return true;
  }
  // The check was made for another reason: the next is due one interval from now.
  void postpone(Clock::time_point now = Clock::now()) { next_ = now + interval_; }

 private:
  Clock::duration interval_;
  Clock::time_point next_ = Clock::now() + interval_;
};

}  // namespace cairn::commit
