#include "run/run_account.h"

#include <gtest/gtest.h>

#include <string>

namespace cairn::run {
namespace {

// The member "run" in the notes of a checkpoint.
std::string notes_of(const RunAccount& account, double now) { return R"({"run": )" + account.text(now) + "}"; }

// Of a process that has made steps of 10 seconds from 1000 to 1100, and has then begun a save.
std::string first_notes() {
  RunAccount account(1000);
  for (int i = 1; i <= 10; ++i) account.step(1000 + 10 * i);
  return notes_of(account, 1100);
}

TEST(RunAccount, CountsTheWaitForTheSaveBefore) {
  RunAccount account(0);
  account.step(10);
  account.save_begins(14, 4);
  account.save_returns(15);
  account.save_ends(true, 18);
  EXPECT_EQ(account.report(20).calls, 5);
  EXPECT_EQ(account.report(20).failed_saves, 0);
  EXPECT_EQ(account.costs().save, 5);
  EXPECT_EQ(account.costs().durable, 4);
}

TEST(RunAccount, CountsAFailureWithinACall) {
  RunAccount account(0);
  account.save_begins(10, 0);
  account.save_ends(false, 12);
  account.save_returns(13);
  EXPECT_EQ(account.report(20).calls, 3);
  EXPECT_EQ(account.report(20).failed_saves, 3);
  account.save_begins(14, 0);
  account.save_returns(15);
  account.save_ends(false, 19);
  EXPECT_EQ(account.report(20).calls, 4);
  EXPECT_EQ(account.report(20).failed_saves, 4);
  EXPECT_EQ(account.report(20).failed, 2U);
}

TEST(RunAccount, CountsTheCallOfAFastSave) {
  RunAccount account(0);
  account.save_begins(10, 0);
  account.save_ends(true, 12);
  account.save_returns(13);
  EXPECT_EQ(account.report(20).calls, 3);
  EXPECT_EQ(account.report(20).saves, 1U);
}

TEST(RunAccount, ADroppedSaveIsNoFailure) {
  RunAccount account(0);
  account.save_begins(10, 0);
  account.save_drops(12);
  account.save_returns(14);
  account.save_ends(true, 15);
  const ManagedRunReport report = account.report(20);
  EXPECT_EQ(report.calls, 2);
  EXPECT_EQ(report.saves + report.failed, 0U);
}

TEST(RunAccount, TimeInAQueueIsNoTimeOfTheRun) {
  RunAccount resumed(5000);
  resumed.resume(first_notes());
  EXPECT_EQ(resumed.report(5050).elapsed, 150);
  EXPECT_EQ(resumed.report(5050).good_share(), 1);
  RunAccount third(9000);
  third.resume(notes_of(resumed, 5050));
  EXPECT_EQ(third.report(9001).elapsed, 151);
  EXPECT_EQ(third.report(9001).failures, 0U);
}

// At 1300: of a process that has resumed from first_notes(), after one from 1000 to 1130, and ended a step at 1260.
void expect_the_restart(const ManagedRunReport& report) {
  EXPECT_EQ(report.elapsed, 300);
  EXPECT_EQ(report.failures, 1U);
  EXPECT_EQ(report.redone, 30);
  EXPECT_EQ(report.restarts, 130);
}

TEST(RunAccount, AFailureCountsTheRestart) {
  RunAccount resumed(1200);
  resumed.resume(first_notes());
  resumed.fail({1000, 1130});
  resumed.step(1260);
  expect_the_restart(resumed.report(1300));
}

// It is known late that a process of another host is dead.
TEST(RunAccount, AFailureKnownLateCountsAsMuch) {
  RunAccount resumed(1200);
  resumed.resume(first_notes());
  resumed.step(1260);
  EXPECT_EQ(resumed.report(1300).elapsed, 200);
  resumed.fail({1000, 1130});
  expect_the_restart(resumed.report(1300));
}

// A process that has resumed from a clean end dies before its first save: the queue before it is not done again.
TEST(RunAccount, TimeInAQueueIsNotDoneAgain) {
  RunAccount third(9000);
  third.resume(first_notes());
  third.fail({8000, 8050});
  third.step(9010);
  const ManagedRunReport report = third.report(9010);
  EXPECT_EQ(report.elapsed, 100 + 1010);
  EXPECT_EQ(report.redone, 50);
  EXPECT_EQ(report.restarts, 960);
}

TEST(RunAccount, CountsAFailureOfAnEmptyRoot) {
  RunAccount second(1200);
  second.fail({1000, 1130});
  second.step(1230);
  const ManagedRunReport report = second.report(1300);
  EXPECT_EQ(report.elapsed, 300);
  EXPECT_EQ(report.redone, 130);
  EXPECT_EQ(report.restarts, 100);
}

TEST(RunAccount, DamagedNotesHoldNoAccount) {
  for (const char* notes : {"", "{}", R"({"run": 7})", R"({"run": {"calls": )"}) {
    RunAccount account(1000);
    account.resume(notes);
    EXPECT_EQ(account.report(1010).elapsed, 10) << notes;
    EXPECT_EQ(account.report(1010).saves, 0U) << notes;
  }
}

}  // namespace
}  // namespace cairn::run
