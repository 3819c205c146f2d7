// Which calls into a storage count as hanging, and which count as slow. The tests pass the time themselves.
#include "storage/operation_watch.h"

#include <gtest/gtest.h>

#include <optional>

namespace cairn::storage {
namespace {

using namespace std::chrono_literals;
using Call = OperationWatch::Call;
using Kind = OperationKind;

constexpr SaveDeadlines kDeadlines{10s, 60s, 20s};

class OperationWatches : public testing::Test {
 protected:
  // Advances the time in steps of 100 ms, as the judging thread ticks.
  void pass(std::chrono::milliseconds time) {
    for (; time > 0ms; time -= 100ms) watch_.tick(now_ += 100ms);
  }
  bool is_overdue() const { return watch_.overdue(kDeadlines).has_value(); }

  OperationWatch watch_;
  OperationWatch::Clock::time_point now_{};
};

TEST_F(OperationWatches, FindACallThatHasNotReturned) {
  pass(1s);
  const Call call(watch_, Kind::kWrite, "writing", "a");
  pass(10s);
  EXPECT_FALSE(is_overdue());
  pass(100ms);
  ASSERT_TRUE(is_overdue());
  EXPECT_EQ(watch_.overdue(kDeadlines)->what, "writing 'a'");
}

TEST_F(OperationWatches, AcceptSlowCallsThatReturn) {
  for (int write = 0; write < 20; ++write) {
    const Call call(watch_, Kind::kWrite, "writing", "a");
    pass(9s);
    EXPECT_FALSE(is_overdue());
  }
}

TEST_F(OperationWatches, GiveASyncItsOwnLimit) {
  const Call name(watch_, Kind::kNames, "listing", ".");
  std::optional<Call> sync;
  sync.emplace(watch_, Kind::kSync, "syncing", "a");
  pass(59s);
  EXPECT_FALSE(is_overdue());
  EXPECT_EQ(watch_.oldest()->what, "syncing 'a'");
  sync.reset();
  EXPECT_FALSE(is_overdue());  // the call behind the sync did not age during the sync
  pass(19s);
  EXPECT_FALSE(is_overdue());
  pass(2s);
  EXPECT_TRUE(is_overdue());
}

TEST_F(OperationWatches, FindASyncThatHangs) {
  const Call sync(watch_, Kind::kSync, "syncing", "a");
  pass(61s);
  EXPECT_TRUE(is_overdue());
}

TEST_F(OperationWatches, JudgeAHeartbeatWithoutOthers) {
  const Call heartbeat(watch_, Kind::kHeartbeat, "touching", "lease");
  {
    const Call write(watch_, Kind::kNames, "renaming", "a");
    pass(15s);
    EXPECT_FALSE(is_overdue());
  }
  EXPECT_FALSE(is_overdue());
  pass(11s);
  EXPECT_TRUE(is_overdue());
}

TEST_F(OperationWatches, LeaveOutTheTimeOfAStop) {
  watch_.tick(now_);
  const Call call(watch_, Kind::kWrite, "writing", "a");
  watch_.tick(now_ += 1h);
  EXPECT_FALSE(is_overdue());
}

}  // namespace
}  // namespace cairn::storage
