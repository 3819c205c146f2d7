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
    next_ = now + interval_;
    return true;
  }

 private:
  Clock::duration interval_;
  Clock::time_point next_ = Clock::now() + interval_;
};

}  // namespace cairn::commit
