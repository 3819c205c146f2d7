// RetryPace: when a failed request is sent again, and when its caller gives up.
//
// Pauses have full jitter: a random time up to a limit that doubles from try to try. Many clients of a store that was
// down for a moment then return at different times. The caller gives up when a time has passed without success, however
// often it has tried. One thread at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>

#include "os/parallel.h"

namespace cairn::storage {

struct RetryLimits {
  std::chrono::milliseconds first_pause_max{50};
  std::chrono::milliseconds pause_max{20'000};
  std::chrono::milliseconds without_success_max{300'000};
  // As long as the store has not answered once: a mistake in an address shows soon.
  std::chrono::milliseconds without_contact_max{20'000};
};

class RetryPace {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RetryPace(const RetryLimits& limits, Clock::time_point now)
      : limits_(limits), began_(now), pause_max_(limits.first_pause_max), random_(std::random_device{}()) {}

  // Some bytes arrived: the time without success begins anew.
  void note_success(Clock::time_point now) {
    began_ = now;
    pause_max_ = limits_.first_pause_max;
  }
  // The pause before the next try; nullopt: the time is over.
  std::optional<std::chrono::milliseconds> next_pause(Clock::time_point now, bool had_contact) {
    const auto budget =
        had_contact ? limits_.without_success_max : std::min(limits_.without_contact_max, limits_.without_success_max);
    if (now - began_ >= budget) return std::nullopt;
    std::uniform_int_distribution<std::chrono::milliseconds::rep> pause(0, pause_max_.count());
    pause_max_ = std::min(pause_max_ * 2, limits_.pause_max);
    return std::chrono::milliseconds(pause(random_));
  }

 private:
  RetryLimits limits_;
  Clock::time_point began_;
  std::chrono::milliseconds pause_max_;
  std::minstd_rand random_;
};

// Waits for the time, or until `stop` is set, which is then the result. `stop` may be null.
bool pause_unless_stopped(std::chrono::milliseconds time, const os::StopFlag* stop);

}  // namespace cairn::storage
