#include "commit/meeting/save_follower.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "commit/save_fence.h"
#include "commit/save_transaction.h"
#include "commit/testing/rank_saves.h"
#include "storage/testing/model_storage.h"

namespace cairn::commit {
namespace {

using storage::ModelStorage;

// Rank 1 of two. The test is the coordinator: the claim is its own, and so are the marks.
class MeetingFollower : public testing::Test {
 protected:
  MeetingFollower() {
    claim_->keep_folder();
    member_.place = {1, 2, 0};
    options_.write.thread_count = 1;
    EXPECT_TRUE(follower_.take_lease(true));
  }

  bool holds(const std::string& name) const { return disk_.open(name, false).has_value(); }
  bool has_lease() const { return holds(member_.marks.path_of(rank_lease_name(1))); }
  std::map<std::uint32_t, Error> failures() const { return member_.marks.look().value().failures; }
  void decide(const Decision& decision) {
    ASSERT_TRUE(SaveMarks(disk_, ticket_.identity.save_id).write_decision(decision));
  }

  ModelStorage disk_;
  std::unique_ptr<SaveTransaction> claim_ = claim_checkpoint(disk_, save_number(4)).value();
  SaveTicket ticket_ = claim_->ticket();
  RankBytes bytes_{ticket_, 1, 2};
  SaveMember member_{ModelStorage::view_of(disk_), ticket_, {}};
  SaveFollower follower_{member_};
  RankSaveOptions options_;
};

TEST_F(MeetingFollower, HasALeaseFromItsEntryToItsEnd) {
  EXPECT_TRUE(has_lease());
  decide({});
  ASSERT_TRUE(follower_.follow(bytes_.files(), options_));
  EXPECT_FALSE(has_lease());
  EXPECT_TRUE(failures().empty());
}

TEST_F(MeetingFollower, ReportsACommitWithWarnings) {
  SaveFence fence;
  member_.fence = &fence;
  decide({{}, false, {"a leftover stays"}});
  const auto report = follower_.follow(bytes_.files(), options_);
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_EQ(report->warnings, (std::vector<std::string>{"a leftover stays"}));
  EXPECT_EQ(report->bytes_written, disk_.open(bytes_.name(), false).value()->size());
  EXPECT_EQ(fence.give_up(), SaveFence::GivenUp::kCommitted);
}

TEST_F(MeetingFollower, WithdrawsFromAFailedSave) {
  decide({Error::of_ranks({Error(ErrorCode::kNoSpace, "the disk is full").rank(0)}), false, {}});
  const auto report = follower_.follow(bytes_.files(), options_);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(report.error().rank(), 0u);
  EXPECT_FALSE(holds(bytes_.name()));
  EXPECT_FALSE(has_lease());
}

TEST_F(MeetingFollower, KeepsFilesOfAPossibleCommit) {
  decide({Error(ErrorCode::kUnavailable, "the directory was not synced"), true, {}});
  ASSERT_FALSE(follower_.follow(bytes_.files(), options_));
  EXPECT_TRUE(holds(bytes_.name()));
}

TEST_F(MeetingFollower, ReportsWhyFilesAreMissing) {
  ASSERT_TRUE(disk_.create_whole(bytes_.name(), "another program's", Durability::kBuffered));
  options_.write.interrupted = [this] { return member_.progress.phase == SavePhase::kWaiting; };
  const auto report = follower_.follow(bytes_.files(), options_);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().error_number(), EEXIST) << report.error().what();
  EXPECT_EQ(report.error().rank(), 1u);
  ASSERT_TRUE(failures().contains(1));
  EXPECT_EQ(failures().at(1).error_number(), EEXIST);
  EXPECT_FALSE(has_lease());
  EXPECT_FALSE(holds(member_.marks.path_of(bytes_.name()))) << "its room may be what the others lack";
}

TEST_F(MeetingFollower, FailsTheSaveIfInterrupted) {
  options_.write.interrupted = [this] { return member_.progress.phase == SavePhase::kWaiting; };
  const auto report = follower_.follow(bytes_.files(), options_);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kCancelled);
  EXPECT_TRUE(failures().contains(1));
  EXPECT_TRUE(holds(bytes_.name())) << "the coordinator may commit: only it withdraws";
  EXPECT_FALSE(has_lease());
}

TEST_F(MeetingFollower, GivesUpWithItsReason) {
  follower_.give_up(Error(ErrorCode::kInvalidArgument, "no bytes today"));
  ASSERT_TRUE(failures().contains(1));
  EXPECT_EQ(failures().at(1).message(), "no bytes today");
  EXPECT_FALSE(has_lease());
}

TEST_F(MeetingFollower, ReportsNothingBeforeItsEntry) {
  SaveMember late(ModelStorage::view_of(disk_), ticket_, {});
  late.place = {0, 2, 1};
  SaveFollower(late).give_up(Error(ErrorCode::kInvalidArgument, "no bytes today"));
  EXPECT_TRUE(failures().empty());
}

// The coordinator commits once it sees the lease of a rank without files.
TEST(RankWithoutFiles, DecidesByTheLease) {
  for (const bool has_files : {false, true}) {
    ModelStorage disk;
    const auto claim = claim_checkpoint(disk, save_number(4)).value();
    claim->keep_folder();
    const auto save = RankSave::join(ModelStorage::view_of(disk), claim->ticket());
    SaveFence fence;
    ASSERT_TRUE(save->enter({1, 2, 0}, {.has_files = has_files, .fence = &fence}));
    EXPECT_EQ(fence.give_up(), has_files ? SaveFence::GivenUp::kForGood : SaveFence::GivenUp::kUnknown);
  }
}

TEST(RankWithoutFiles, TakesNoLeaseAfterGivingUp) {
  ModelStorage disk;
  const auto claim = claim_checkpoint(disk, save_number(4)).value();
  claim->keep_folder();
  const auto late = RankSave::join(ModelStorage::view_of(disk), claim->ticket());
  SaveFence fence;
  EXPECT_EQ(fence.give_up(), SaveFence::GivenUp::kForGood);
  const auto entered = late->enter({1, 2, 0}, {.has_files = false, .fence = &fence});
  ASSERT_FALSE(entered);
  EXPECT_EQ(entered.error().code(), ErrorCode::kCancelled);
  const auto seen = SaveMarks(disk, claim->ticket().identity.save_id).look().value();
  EXPECT_TRUE(seen.failures.contains(1));
  EXPECT_FALSE(seen.leases.contains(1));
}

}  // namespace
}  // namespace cairn::commit
