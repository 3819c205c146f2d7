// SaveClock: whether a save is due by the time since the last one began.
#pragma once

#include <cairn/managed_run.h>

#include <chrono>
#include <mutex>
#include <optional>

namespace cairn::run {

// Thread-safe.
class SaveClock {
 public:
  using Clock = std::chrono::steady_clock;

  explicit SaveClock(const SaveSchedule& schedule);
  // False while a save is in flight. A test gives `now`.
  bool is_due(Clock::time_point now = Clock::now()) const;
  void save_begins(Clock::time_point now = Clock::now());
  // The save that has begun is not made after all: it is due again.
  void save_drops();
  void save_ends();
  // The automatic interval follows the costs and failures so far.
  void learn(const RunCosts& costs, const ManagedRunReport& report);
  double automatic_interval() const;  // in seconds; 0 without

 private:
  const SaveSchedule schedule_;
  mutable std::mutex mutex_;
  std::optional<Clock::duration> interval_;
  double automatic_ = 0;
  Clock::time_point last_;
  Clock::time_point last_before_;  // of the save in flight: of the save before
  bool is_saving_ = false;
};

}  // namespace cairn::run
