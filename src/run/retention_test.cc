#include "run/retention.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace cairn::run {
namespace {

using namespace std::chrono_literals;
using Best = RetentionRule::Best;

constexpr double kNow = 10'000;

// The indices of the kept entries; those of `bad` are no good checkpoints.
std::vector<std::size_t> kept(const RetentionRule& rule, const std::vector<Entry>& entries,
                              const std::set<std::size_t>& bad = {}) {
  const auto reasons = kept_by(rule, entries, kNow, [&bad](std::size_t i) { return !bad.contains(i); });
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    if (!reasons[i].empty()) indices.push_back(i);
  }
  return indices;
}

// Steps 500, 400, ... 100, a checkpoint each 100 seconds.
std::vector<Entry> five() {
  std::vector<Entry> entries;
  for (std::uint64_t i = 0; i < 5; ++i) entries.push_back({500 - 100 * i, kNow - 100.0 * static_cast<double>(i + 1)});
  return entries;
}

using Indices = std::vector<std::size_t>;

TEST(Retention, KeepsTheLastCheckpoints) {
  RetentionRule rule;
  rule.last = 2;
  EXPECT_EQ(kept(rule, five()), (Indices{0, 1}));
  EXPECT_EQ(kept(rule, five(), {0, 2}), (Indices{1, 3}));
  rule.last = 9;
  EXPECT_EQ(kept(rule, five(), {0}), (Indices{1, 2, 3, 4}));
}

TEST(Retention, KeepsMultiplesOfSteps) {
  RetentionRule rule;
  rule.every_steps = 200;
  EXPECT_EQ(kept(rule, five()), (Indices{1, 3}));
  EXPECT_EQ(kept(rule, {{std::nullopt, 1}, {0, 1}}), (Indices{1}));
}

TEST(Retention, KeepsDistancesInTime) {
  RetentionRule rule;
  rule.every_seconds = 200s;
  EXPECT_EQ(kept(rule, five()), (Indices{0, 2, 4}));
  EXPECT_EQ(kept(rule, five(), {4}), (Indices{1, 3}));
  // What one call keeps, the next keeps too.
  const auto entries = five();
  EXPECT_EQ(kept(rule, {entries[0], entries[2], entries[4]}), (Indices{0, 1, 2}));
}

TEST(Retention, KeepsTheBestByAMetric) {
  auto entries = five();
  for (std::size_t i = 0; i < 4; ++i) entries[i].metrics["loss"] = i % 2 == 0 ? 2.0 : 1.0;
  RetentionRule rule;
  rule.best = {Best{"loss", Best::Order::kMin, 1}};
  EXPECT_EQ(kept(rule, entries), (Indices{1}));  // of equal values the newer
  EXPECT_EQ(kept(rule, entries, {1}), (Indices{3}));
  rule.best = {Best{"loss", Best::Order::kMax, 3}};
  EXPECT_EQ(kept(rule, entries), (Indices{0, 1, 2}));
  rule.best = {Best{"accuracy", Best::Order::kMax, 3}};
  EXPECT_EQ(kept(rule, entries), Indices{});
}

TEST(Retention, KeepsTheYoungCheckpoints) {
  RetentionRule rule;
  rule.newer_than = 200s;
  EXPECT_EQ(kept(rule, five()), (Indices{0, 1}));
}

TEST(Retention, KeepsTheUnionOfTheRules) {
  RetentionRule rule;
  rule.last = 1;
  rule.every_steps = 300;
  EXPECT_EQ(kept(rule, five()), (Indices{0, 2}));
  rule.every_steps = 500;
  EXPECT_EQ(kept_by(rule, five(), kNow, [](std::size_t) { return true; })[0], "last 1, every 500 steps");
}

TEST(Retention, AsksForEachEntryOnce) {
  RetentionRule rule;
  rule.last = 3;
  auto entries = five();
  for (Entry& entry : entries) entry.metrics["loss"] = 1;
  rule.best = {Best{"loss", Best::Order::kMin, 5}};
  std::vector<int> asked(entries.size());
  (void)kept_by(rule, entries, kNow, [&asked](std::size_t i) { return ++asked[i] > 0; });
  EXPECT_EQ(asked, std::vector<int>(entries.size(), 1));
}

TEST(Retention, RefusesRulesThatMeanNothing) {
  const auto code_of = [](const RetentionRule& rule) { return check(rule).error().code(); };
  RetentionRule rule;
  EXPECT_EQ(code_of(rule), ErrorCode::kInvalidArgument);
  rule.last = 0;
  EXPECT_EQ(code_of(rule), ErrorCode::kInvalidArgument);
  rule.last = 1;
  EXPECT_TRUE(check(rule));
  rule.every_steps = 0;
  EXPECT_EQ(code_of(rule), ErrorCode::kInvalidArgument);
  rule.every_steps = 1;
  rule.every_seconds = 0s;
  EXPECT_EQ(code_of(rule), ErrorCode::kInvalidArgument);
  rule.every_seconds = 1s;
  rule.newer_than = -1s;
  EXPECT_EQ(code_of(rule), ErrorCode::kInvalidArgument);
  rule.newer_than = 0s;
  rule.best = {Best{"", Best::Order::kMin, 1}};
  EXPECT_EQ(code_of(rule), ErrorCode::kInvalidArgument);
  rule.best = {Best{"loss", Best::Order::kMin, 0}};
  EXPECT_EQ(code_of(rule), ErrorCode::kInvalidArgument);
  rule.best = {Best{"loss", Best::Order::kMin, 1}};
  EXPECT_TRUE(check(rule));
}

}  // namespace
}  // namespace cairn::run
