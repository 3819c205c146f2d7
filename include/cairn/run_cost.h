// save_interval: how often a run should save. simulate_run: what saves and failures cost a run, for any interval.
//
// Pure functions. All times are in seconds.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace cairn {

// The costs of a run's saves and restarts.
struct RunCosts {
  // By which a save delays the training: the blocking call, and the slower steps while the save goes on.
  double save = 0;
  // From the call until the checkpoint is durable. A failure before that loses the work since the save before. At least
  // `save`, else `save` counts. The next save waits for the end of this one.
  double durable = 0;
  // From a failure until the training goes on where the checkpoint was: detection, new nodes, start, load.
  double restart = 0;
};

struct IntervalBounds {
  double min = 60;
  double max = 4 * 3600;
};

// The interval between two saves, from the start of one to the start of the next, with the least expected loss: J. T.
// Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006, equation 37, after J. W.
// Young, 1974. Within the bounds, and not less than `costs.durable`. `between_failures`: the mean time between two
// failures of the whole job.
double save_interval(const RunCosts& costs, double between_failures, const IntervalBounds& bounds = {});

// The mean time between failures of a run that has seen `failures` in `elapsed` seconds, if `expected` was expected
// before: the mean of the posterior rate of a Poisson process, for a prior of one failure in `expected` seconds.
// Positive for each positive `expected`.
double time_between_failures(double expected, double elapsed, std::uint64_t failures);

struct SimulatedRun {
  double work = 0;  // seconds of training that the run needs without saves and failures
  RunCosts costs = {};
  // The times of failures, ascending, from the start of the run on; failures after the last do not happen. Or, without
  // times, failures come at random with this mean time between them (`seed`); 0: no failures.
  std::vector<double> failures = {};
  double between_failures = 0;
  std::uint64_t seed = 1;
  // Nullopt: save_interval() of the costs and of time_between_failures(), anew after each failure and each save.
  std::optional<double> interval = {};
  double expected_between_failures = 24 * 3600;  // before the first failure, for the automatic interval
  IntervalBounds bounds = {};
  double elapsed_max = 10 * 365.25 * 86400;  // a run that fails faster than it saves never ends
};

struct RunReport {
  double elapsed = 0;            // the sum of the next four
  double work = 0;               // of the training that counts: as asked for, or less if the run has not ended
  double saves = 0;              // lost to saves
  double redone = 0;             // lost to failures: work that was done again
  double restarts = 0;           // lost to restarts
  std::uint64_t save_count = 0;  // durable ones
  std::uint64_t failure_count = 0;
  bool has_ended = true;
  double good_share() const { return elapsed > 0 ? work / elapsed : 1; }
};

// Replays a run. kInvalidArgument for negative, infinite and unordered times, and for an interval of 0.
Result<RunReport> simulate_run(const SimulatedRun& run);

}  // namespace cairn
