#include <cairn/run_cost.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <utility>

namespace cairn {
namespace {

// Failures from a log, or at random.
class Failures {
 public:
  explicit Failures(const SimulatedRun& run) : run_(run), random_(run.seed) { advance(); }

  double next() const { return next_; }
  void advance() {
    if (!run_.failures.empty()) {
      next_ = position_ < run_.failures.size() ? run_.failures[position_++] : INFINITY;
    } else if (run_.between_failures > 0) {
      // By the inverse of the distribution: equal in every C++ library.
      const double uniform = (static_cast<double>(random_() >> 11U) + 1.0) * 0x1p-53;
      next_ += -std::log(uniform) * run_.between_failures;
    } else {
      next_ = INFINITY;
    }
  }

 private:
  const SimulatedRun& run_;
  std::mt19937_64 random_;
  std::size_t position_ = 0;
  double next_ = 0;
};

class Simulation {
 public:
  explicit Simulation(const SimulatedRun& run)
      : run_(run), failures_(run), durable_seconds_(std::max(run.costs.durable, run.costs.save)) {}

  RunReport replay() {
    while (done_ < run_.work && now_ < run_.elapsed_max) step();
    report_.elapsed = now_;
    report_.has_ended = done_ >= run_.work;
    report_.work = report_.has_ended ? run_.work : durable_work_;
    if (!report_.has_ended) report_.redone += done_ - durable_work_;
    return report_;
  }

 private:
  // Trains up to the next save, saves, and goes on; or fails.
  void step() {
    const double due = std::max(saved_at_ + interval(), pending_until_);
    const double end = now_ + (run_.work - done_);
    const double until = std::min({std::max(due, now_), end, run_.elapsed_max});
    if (failures_.next() <= until) return train_and_fail(failures_.next(), 0);
    train(until);
    if (until == end) done_ = run_.work;  // the sum of rounded times may fall short for ever
    if (until < due || until == end) return;
    const double saved = now_ + run_.costs.save;
    if (failures_.next() <= saved) return train_and_fail(failures_.next(), failures_.next() - now_);
    settle(now_);
    saved_at_ = now_;
    pending_work_ = done_;
    pending_until_ = now_ + durable_seconds_;
    is_pending_ = true;
    now_ = saved;
    report_.saves += run_.costs.save;
  }

  void train(double until) {
    done_ += until - now_;
    now_ = until;
    settle(now_);
  }

  // Notes a save that has become durable.
  void settle(double now) {
    if (!is_pending_ || now < pending_until_) return;
    is_pending_ = false;
    durable_work_ = pending_work_;
    ++report_.save_count;
  }

  // `saving`: the last seconds before the failure, which went to a save.
  void train_and_fail(double at, double saving) {
    train(at - saving);
    now_ = at;
    report_.saves += saving;
    settle(now_);
    is_pending_ = false;
    report_.redone += done_ - durable_work_;
    done_ = durable_work_;
    // Failures during the restart begin it anew.
    double restarted = at + run_.costs.restart;
    for (count_failure(); failures_.next() <= restarted; count_failure()) {
      restarted = failures_.next() + run_.costs.restart;
    }
    report_.restarts += restarted - at;
    now_ = restarted;
    saved_at_ = now_;
    pending_until_ = now_;
  }

  void count_failure() {
    ++report_.failure_count;
    failures_.advance();
  }

  double interval() const {
    if (run_.interval) return *run_.interval;
    const double between = time_between_failures(run_.expected_between_failures, now_, report_.failure_count);
    return save_interval(run_.costs, between, run_.bounds);
  }

  const SimulatedRun& run_;
  Failures failures_;
  double durable_seconds_;
  RunReport report_;
  double now_ = 0;
  double done_ = 0;          // work
  double durable_work_ = 0;  // in the newest durable checkpoint
  double saved_at_ = 0;      // the start of the last save, or of the training
  bool is_pending_ = false;  // a save is not durable yet
  double pending_work_ = 0;  // in that save
  double pending_until_ = 0;
};

Result<void> check(const SimulatedRun& run) {
  const auto require = [](bool holds, const std::string& text) -> Result<void> {
    if (!holds) return Error(ErrorCode::kInvalidArgument, text);
    return {};
  };
  const auto is_time = [](double seconds) { return std::isfinite(seconds) && seconds >= 0; };
  CAIRN_TRY(require(is_time(run.work) && is_time(run.costs.save) && is_time(run.costs.durable) &&
                        is_time(run.costs.restart) && is_time(run.between_failures) && is_time(run.elapsed_max),
                    "times must be finite, and must not be negative"));
  CAIRN_TRY(require(!run.interval || (is_time(*run.interval) && *run.interval > 0), "the interval must be positive"));
  CAIRN_TRY(require(is_time(run.expected_between_failures) && run.expected_between_failures > 0,
                    "the expected time between failures must be positive"));
  CAIRN_TRY(require(is_time(run.bounds.min) && run.bounds.min > 0 && run.bounds.max >= run.bounds.min,
                    "the bounds of the interval must be positive, and the smaller one comes first"));
  return require(std::all_of(run.failures.begin(), run.failures.end(), is_time) &&
                     std::is_sorted(run.failures.begin(), run.failures.end()),
                 "the times of failures must be ascending, and must not be negative");
}

}  // namespace

double save_interval(const RunCosts& costs, double between_failures, const IntervalBounds& bounds) {
  const double save = costs.save, mean = between_failures;
  double interval = mean;
  if (save < 2 * mean) {
    const double ratio = save / (2 * mean);
    interval =
        std::sqrt(2 * save * mean) * (1 + std::sqrt(ratio) / 3 + ratio / 9);  // Daly's minus `save`, plus the save
  }
  return std::max(std::clamp(interval, bounds.min, bounds.max), costs.durable);
}

double time_between_failures(double expected, double elapsed, std::uint64_t failures) {
  return (expected + elapsed) / (1 + static_cast<double>(failures));
}

Result<RunReport> simulate_run(const SimulatedRun& run) {
  CAIRN_TRY(check(run));
  return Simulation(run).replay();
}

}  // namespace cairn
