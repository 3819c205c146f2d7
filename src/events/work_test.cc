#include "events/work.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "events/operation.h"

namespace cairn::events {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using State = WorkInProgress::State;

Work begun_work() { return Work::begin(WorkKind::kConvert, {"run/step-12", 2, 4}, {}); }

TEST(Work, IsUnlistedWithoutAWatch) {
  const Work work = begun_work();
  EXPECT_FALSE(work.is_listed());
  EXPECT_EQ(work.count(), nullptr);
  EXPECT_FALSE(work.setter({}));
}

TEST(Work, IsListedUntilItsEndIsTaken) {
  ProgressWatch watch;
  const Work work = begun_work();
  work.set(3, 9);
  std::vector<WorkInProgress> works = watch.take(minutes(1));
  ASSERT_EQ(works.size(), 1u);
  EXPECT_EQ(works[0].kind, WorkKind::kConvert);
  EXPECT_EQ(works[0].directory, "run/step-12");
  EXPECT_EQ(std::pair(works[0].rank, works[0].rank_count), std::pair(2u, 4u));
  EXPECT_EQ(std::pair(works[0].done, works[0].total), std::pair(3ul, 9ul));
  EXPECT_EQ(works[0].state, State::kRunning);
  work.end(true);
  work.end(false);  // too late
  works = watch.take(minutes(1));
  ASSERT_EQ(works.size(), 1u);
  EXPECT_EQ(works[0].state, State::kSucceeded);
  EXPECT_TRUE(watch.take(milliseconds(0)).empty());
}

TEST(Work, AddsTheCountsOfThreads) {
  ProgressWatch watch;
  const Work counted = begun_work();
  const Work measured = begun_work();
  std::thread([count = counted.count()] { count->add_done(7); }).join();
  measured.measure([](WorkCount& count) { count.done = 8; });
  const std::vector<WorkInProgress> works = watch.take(minutes(1));
  ASSERT_EQ(works.size(), 2u);
  EXPECT_EQ(works[0].done, 7u);
  EXPECT_EQ(works[1].done, 8u);
  EXPECT_LT(works[0].id, works[1].id);
}

TEST(Work, SetterAlsoCallsTheCaller) {
  std::uint64_t told = 0;
  ProgressWatch watch;
  const Work work = begun_work();
  work.setter([&told](std::uint64_t done, std::uint64_t) { told = done; })(5, 6);
  EXPECT_EQ(told, 5u);
  EXPECT_EQ(watch.take(minutes(1)).at(0).total, 6u);
}

TEST(Work, IsWholeAfterASuccess) {
  ProgressWatch watch;
  const Work good = begun_work();
  const Work bad = begun_work();
  for (const Work* work : {&good, &bad}) work->set(3, 9);
  good.end(true);
  bad.end(false);
  const std::vector<WorkInProgress> works = watch.take(minutes(1));
  EXPECT_EQ(works.at(0).done, 9u);
  EXPECT_EQ(works.at(1).done, 3u);
}

TEST(Work, HasFailedWithoutAnEnd) {
  ProgressWatch watch;
  { const Work work = begun_work(); }
  EXPECT_EQ(watch.take(minutes(1)).at(0).state, State::kFailed);
}

TEST(Work, StaysInAClosedWatch) {
  ProgressWatch watch;
  const Work first = begun_work();
  watch.close();
  EXPECT_TRUE(watch.is_closed());
  const Work second = begun_work();
  EXPECT_FALSE(second.is_listed());
  EXPECT_EQ(watch.take(minutes(1)).size(), 1u);
  first.end(true);
  EXPECT_EQ(watch.take(minutes(1)).at(0).state, State::kSucceeded);
}

TEST(Work, OutlivesTheWatch) {
  std::optional<ProgressWatch> watch(std::in_place);
  const Work work = begun_work();
  watch.reset();
  work.set(1, 2);
  work.end(true);
  EXPECT_FALSE(begun_work().is_listed());
}

TEST(Work, OfAForkedChildIsUnlisted) {
  ProgressWatch watch;
  Work work = begun_work();
  const pid_t child = fork();
  if (child == 0) {
    const bool is_clean = !begun_work().is_listed();
    work.end(true);
    work = Work();
    _exit(is_clean ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(watch.take(minutes(1)).at(0).state, State::kRunning);
}

TEST(ProgressWatch, WaitsForTheNextWork) {
  ProgressWatch watch;
  std::vector<WorkInProgress> works;
  std::thread looking([&] { works = watch.take(minutes(5)); });
  const Work work = begun_work();
  looking.join();
  EXPECT_EQ(works.size(), 1u);
}

TEST(ProgressWatch, WaitsUntilClose) {
  ProgressWatch watch;
  std::thread looking([&] { EXPECT_TRUE(watch.take(minutes(5)).empty()); });
  watch.close();
  looking.join();
}

TEST(ProgressWatch, ListsABoundedNumber) {
  ProgressWatch watch;
  std::vector<Work> works;
  for (int i = 0; i < 1100; ++i) works.push_back(begun_work());
  EXPECT_EQ(watch.take(minutes(1)).size(), 1000u);
}

TEST(ProgressWatch, DropsEndedWorksAtTheBound) {
  ProgressWatch watch;
  for (int i = 0; i < 1100; ++i) begun_work().end(true);
  const Work last = begun_work();
  const std::vector<WorkInProgress> works = watch.take(minutes(1));
  EXPECT_LE(works.size(), 1000u);
  EXPECT_EQ(works.back().state, State::kRunning);
}

TEST(Operation, IsAWorkToItsEnd) {
  ProgressWatch watch;
  Operation save = Operation::begin(EventOperation::kSave, {"run/step-12"}, true);
  Operation moved = std::move(save);
  const WorkInProgress work = watch.take(minutes(1)).at(0);
  EXPECT_EQ(work.kind, WorkKind::kSave);
  EXPECT_TRUE(work.asynchronous);
  moved.end(EventKind::kCommitted, 9);
  EXPECT_EQ(watch.take(minutes(1)).at(0).state, State::kSucceeded);
  Operation::begin(EventOperation::kLoad, {"run"}).fail(Error(ErrorCode::kCorrupt, "damage"));
  EXPECT_EQ(watch.take(minutes(1)).at(0).state, State::kFailed);
  const Operation claim = Operation::of_claim({"run"});
  EXPECT_TRUE(watch.take(milliseconds(0)).empty());
}

}  // namespace
}  // namespace cairn::events
