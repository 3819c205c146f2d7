#include <cairn/run_cost.h>
#include <gtest/gtest.h>
#include <sanitizers.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace cairn {
namespace {

constexpr double kHour = 3600, kDay = 24 * kHour;

RunReport replay(const SimulatedRun& run) {
  const auto report = simulate_run(run);
  EXPECT_TRUE(report) << report.error().what();
  const RunReport found = report.value();
  EXPECT_NEAR(found.elapsed, found.work + found.saves + found.redone + found.restarts, 1e-6 * (1 + found.elapsed));
  return found;
}

TEST(SimulatedRun, PaysForSavesWithoutFailures) {
  SimulatedRun run;
  run.work = 1000;
  run.costs = {2, 20, 100};
  run.interval = 100;
  const RunReport report = replay(run);
  // A save each 100 seconds, of which 98 are training: the tenth save begins after 980 seconds of training.
  EXPECT_DOUBLE_EQ(report.saves, 20);
  EXPECT_EQ(report.failure_count, 0u);
  EXPECT_TRUE(report.has_ended);
}

TEST(SimulatedRun, RedoesWorkSinceTheDurableSave) {
  SimulatedRun run;
  run.work = 1000;
  run.costs = {0, 0, 30};
  run.interval = 100;
  run.failures = {250};
  RunReport report = replay(run);
  EXPECT_DOUBLE_EQ(report.redone, 50);
  EXPECT_DOUBLE_EQ(report.restarts, 30);
  EXPECT_DOUBLE_EQ(report.elapsed, 1080);
  run.costs.durable = 60;  // the save of second 200 is not durable at second 250
  report = replay(run);
  EXPECT_DOUBLE_EQ(report.redone, 150);
}

TEST(SimulatedRun, FailsDuringASave) {
  SimulatedRun run;
  run.work = 300;
  run.costs = {10, 10, 0};
  run.interval = 100;
  run.failures = {105};
  const RunReport report = replay(run);
  EXPECT_DOUBLE_EQ(report.redone, 100);
  EXPECT_DOUBLE_EQ(report.saves, 5 + 10 + 10 + 10);
}

TEST(SimulatedRun, FailsDuringARestart) {
  SimulatedRun run;
  run.work = 100;
  run.costs = {0, 0, 50};
  run.interval = 1000;
  run.failures = {10, 30};
  const RunReport report = replay(run);
  EXPECT_DOUBLE_EQ(report.restarts, 70);
  EXPECT_EQ(report.failure_count, 2u);
  EXPECT_DOUBLE_EQ(report.elapsed, 10 + 70 + 100);
}

TEST(SimulatedRun, GivesUpARunWithoutProgress) {
  SimulatedRun run;
  run.work = kDay;
  run.costs = {10, 1000, 10};
  run.between_failures = 100;
  run.interval = 1000;
  run.elapsed_max = 10 * kDay;
  EXPECT_FALSE(replay(run).has_ended);
}

TEST(SimulatedRun, RefusesTimesThatAreNone) {
  SimulatedRun run;
  run.work = -1;
  EXPECT_EQ(simulate_run(run).error().code(), ErrorCode::kInvalidArgument);
  run.work = 1;
  run.interval = 0;
  EXPECT_EQ(simulate_run(run).error().code(), ErrorCode::kInvalidArgument);
  run.interval = 1;
  run.failures = {2, 1};
  EXPECT_EQ(simulate_run(run).error().code(), ErrorCode::kInvalidArgument);
  run.failures = {};
  run.costs.restart = INFINITY;
  EXPECT_EQ(simulate_run(run).error().code(), ErrorCode::kInvalidArgument);
}

TEST(SaveInterval, IsThatOfYoungAndDaly) {
  EXPECT_NEAR(save_interval({10, 0, 0}, kDay), std::sqrt(2 * 10 * kDay), 10);
  EXPECT_DOUBLE_EQ(save_interval({0.001, 0, 0}, kHour), 60);  // the bounds
  EXPECT_DOUBLE_EQ(save_interval({600, 0, 0}, 90 * kDay), 4 * kHour);
  EXPECT_DOUBLE_EQ(save_interval({1, 500, 0}, kHour), 500);  // one save at a time
}

TEST(SaveInterval, LearnsTheTimeBetweenFailures) {
  EXPECT_DOUBLE_EQ(time_between_failures(kDay, 0, 0), kDay);
  EXPECT_NEAR(time_between_failures(kDay, 1000 * kHour, 500), 2 * kHour, 200);
}

// The least time over fixed intervals, of the mean over the seeds.
double mean_elapsed(SimulatedRun run) {
  double sum = 0;
  constexpr int kSeeds = 8;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    run.seed = static_cast<std::uint64_t>(seed);
    sum += replay(run).elapsed;
  }
  return sum / kSeeds;
}

TEST(SaveInterval, IsAsGoodAsTheBestFixed) {
  for (const RunCosts& costs : {RunCosts{0.5, 30, 300}, RunCosts{10, 120, 600}, RunCosts{120, 120, 900}}) {
    if (kSanitized && costs.save != 120) continue;
    SimulatedRun run;
    run.work = 30 * kDay;
    run.costs = costs;
    run.between_failures = 3 * kHour;  // 16,384 ranks, 8 failures a day
    double best = INFINITY;
    for (double interval = 60; interval < 3 * kHour; interval *= kSanitized ? 2 : 1.1) {
      run.interval = interval;
      best = std::min(best, mean_elapsed(run));
    }
    run.interval = std::nullopt;
    EXPECT_LE(mean_elapsed(run), 1.02 * best) << costs.save;
  }
}

}  // namespace
}  // namespace cairn
