#include "commit/lease_watch.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <string>

#include "storage/testing/model_storage.h"
#include "storage/testing/view_storage.h"

namespace cairn::commit {
namespace {

using namespace std::chrono_literals;
using Liveness = LeaseWatch::Liveness;

class FailingLooks final : public storage::ViewStorage {
 public:
  using ViewStorage::ViewStorage;
  Result<double> touched_at(std::string_view name) const override {
    return fails ? Error::from_errno(EIO, "looking") : ViewStorage::touched_at(name);
  }
  bool fails = false;
};

// The lease of a process of another host. The test gives the time.
class ForeignLease : public testing::Test {
 protected:
  ForeignLease() {
    deadlines_.progress = 30s;
    EXPECT_TRUE(disk_.create_whole("lease", "cairn-lease 1\nhost elsewhere\nboot b\nnamespace n\npid 7\nstart 1\n",
                                   Durability::kBuffered));
    EXPECT_TRUE(disk_.touch("lease"));  // the disk gives a new file the time 0
    EXPECT_EQ(look(0s), Liveness::kAlive);
    EXPECT_TRUE(watch_.was_touched());
    EXPECT_EQ(watch_.holder(), "host elsewhere, pid 7");
  }
  Liveness look(std::chrono::milliseconds at) {
    return watch_.look(deadlines_, LeaseWatch::Clock::time_point(std::chrono::hours(1)) + at);
  }

  storage::ModelStorage disk_;
  FailingLooks view_{disk_};
  SaveDeadlines deadlines_;
  LeaseWatch watch_{view_, "lease"};
};

TEST_F(ForeignLease, IsSilentAfterTheDeadline) {
  EXPECT_EQ(look(10s), Liveness::kAlive);
  EXPECT_EQ(look(30s), Liveness::kAlive);
  EXPECT_EQ(look(30s + 1ms), Liveness::kSilent);
}

TEST_F(ForeignLease, IsSilentAfterSomeBeats) {
  deadlines_.progress = 1ms;
  EXPECT_EQ(look(10s), Liveness::kAlive);
  EXPECT_EQ(look(20s), Liveness::kAlive);
  EXPECT_EQ(look(20s + 1ms), Liveness::kSilent);
}

TEST_F(ForeignLease, IsSilentOnlyAtASecondLook) {
  EXPECT_EQ(look(1h), Liveness::kAlive) << "the first look that found no touch";
  EXPECT_EQ(look(1h), Liveness::kSilent);
}

TEST_F(ForeignLease, LivesFromTouchToTouch) {
  for (std::chrono::minutes at = 1min; at < 10min; ++at) {
    ASSERT_TRUE(disk_.touch("lease"));
    EXPECT_EQ(look(at), Liveness::kAlive);
    EXPECT_TRUE(watch_.was_touched());
    EXPECT_EQ(look(at + 29s), Liveness::kAlive);
    EXPECT_FALSE(watch_.was_touched());
  }
}

TEST_F(ForeignLease, IsSilentWhenLooksFailForLong) {
  view_.fails = true;
  EXPECT_EQ(look(1h), Liveness::kAlive);
  EXPECT_EQ(look(1h + 30s), Liveness::kAlive);
  EXPECT_EQ(look(1h + 31s), Liveness::kSilent);
  view_.fails = false;
  EXPECT_EQ(look(1h + 32s), Liveness::kAlive) << "a second look confirms the silence";
}

}  // namespace
}  // namespace cairn::commit
