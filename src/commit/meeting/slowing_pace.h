// SlowingPace: the moments of looks at a storage during a wait: often at first, and at a constant interval later.
//
// After a wait of t, the interval is a quarter of t: a change is seen at most a quarter of the wait late. The longest
// interval bounds the calls of thousands of waiting ranks, and the shortest the calls of a short wait. One thread at a
// time.
#pragma once

#include <algorithm>
#include <chrono>

namespace cairn::commit {

class SlowingPace {
 public:
  using Clock = std::chrono::steady_clock;

  explicit SlowingPace(Clock::duration longest, Clock::duration shortest = {})
      : longest_(longest), shortest_(shortest) {}

  bool is_due() {
    const Clock::time_point now = Clock::now();
    if (now < next_) return false;
    next_ = now + std::clamp((now - start_) / 4, shortest_, longest_);
    return true;
  }
  // The wait is so long that the interval grows no more.
  bool is_slowest() const { return (Clock::now() - start_) / 4 >= longest_; }
  // A new wait begins.
  void restart() {
    start_ = Clock::now();
    next_ = start_;
  }

 private:
  Clock::duration longest_;
  Clock::duration shortest_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_ = start_;
};

}  // namespace cairn::commit
