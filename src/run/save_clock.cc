#include "run/save_clock.h"

#include <algorithm>
#include <utility>

namespace cairn::run {
namespace {

SaveClock::Clock::duration of_seconds(double seconds) {
  return std::chrono::duration_cast<SaveClock::Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

SaveClock::SaveClock(const SaveSchedule& schedule) : schedule_(schedule), last_(Clock::now()) {
  if (schedule_.every) interval_ = *schedule_.every;
  // The first save comes early: it shows the costs.
  if (schedule_.automatic) automatic_ = schedule_.bounds.min;
  if (schedule_.automatic) interval_ = std::min(interval_.value_or(Clock::duration::max()), of_seconds(automatic_));
}

bool SaveClock::is_due(Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  return interval_ && !is_saving_ && now - last_ >= *interval_;
}

void SaveClock::save_begins(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  last_before_ = std::exchange(last_, now);
  is_saving_ = true;
}

void SaveClock::save_drops() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_saving_, false)) last_ = last_before_;
}

void SaveClock::save_ends() {
  const std::lock_guard lock(mutex_);
  is_saving_ = false;
}

void SaveClock::learn(const RunCosts& costs, const ManagedRunReport& report) {
  const std::lock_guard lock(mutex_);
  if (!schedule_.automatic) return;
  const double between = time_between_failures(schedule_.expected_between_failures, report.elapsed, report.failures);
  automatic_ = save_interval(costs, between, schedule_.bounds);
  interval_ = of_seconds(automatic_);
  if (schedule_.every) interval_ = std::min<Clock::duration>(*interval_, *schedule_.every);
}

double SaveClock::automatic_interval() const {
  const std::lock_guard lock(mutex_);
  return automatic_;
}

}  // namespace cairn::run
