// Periodic: true once in an interval, for a look that costs more than the loop that takes it.
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
