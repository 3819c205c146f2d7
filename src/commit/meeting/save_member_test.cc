#include "commit/meeting/save_member.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "commit/save_fence.h"
#include "commit/testing/rank_saves.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/view_storage.h"

namespace cairn::commit {
namespace {

using storage::ModelStorage;

// One of two ranks of a save whose folder is there.
class MeetingMember : public testing::Test {
 protected:
  MeetingMember() {
    member_.place = {1, 2, 0};
    EXPECT_TRUE(disk_.make_folder(member_.marks.folder()));
    options_.thread_count = 1;
  }
  bool holds(const std::string& name) const { return disk_.open(name, false).has_value(); }

  ModelStorage disk_;
  SaveTicket ticket_{save_number(4), false};
  RankBytes bytes_{ticket_, 1, 2};
  SaveMember member_{ModelStorage::view_of(disk_), ticket_, {}};
  data_file::WriteOptions options_;
};

TEST_F(MeetingMember, PublishesUnderFinalNames) {
  const auto trailers = member_.write(bytes_.files(), options_);
  ASSERT_TRUE(trailers) << trailers.error().what();
  const auto file = disk_.open(bytes_.name(), false);
  ASSERT_TRUE(file);
  const auto trailer = manifest::read_trailer(**file);
  ASSERT_TRUE(trailer && *trailer);
  EXPECT_EQ(*trailers, (std::vector<std::uint32_t>{(*trailer)->checksum()}));
  EXPECT_FALSE(holds(member_.marks.path_of(bytes_.name())));
  EXPECT_EQ(member_.progress.bytes_written, (*file)->size());
}

TEST_F(MeetingMember, IsPublishingWhenItsFilesExist) {
  member_.progress.phase = SavePhase::kStaging;
  ASSERT_TRUE(member_.write(bytes_.files(), options_));
  EXPECT_EQ(member_.progress.phase, SavePhase::kPublishing);
}

TEST_F(MeetingMember, PublishesNothingOnceGivenUp) {
  SaveFence fence;
  EXPECT_EQ(fence.give_up(), SaveFence::GivenUp::kForGood);
  member_.fence = &fence;
  const auto trailers = member_.write(bytes_.files(), options_);
  ASSERT_FALSE(trailers);
  EXPECT_EQ(trailers.error().code(), ErrorCode::kCancelled);
  EXPECT_FALSE(holds(bytes_.name()));
  EXPECT_TRUE(holds(member_.marks.path_of(bytes_.name())));
  member_.remove_private_files();
  EXPECT_FALSE(holds(member_.marks.path_of(bytes_.name())));
}

TEST_F(MeetingMember, DecidesByPublishingIfFollower) {
  for (const bool coordinates : {false, true}) {
    SaveFence fence;
    const RankBytes bytes(ticket_, coordinates ? 0 : 1, 2);
    member_.place = {coordinates ? 0u : 1u, 2, 0};
    member_.fence = &fence;
    member_.names.clear();
    ASSERT_TRUE(member_.write(bytes.files(), options_));
    EXPECT_EQ(fence.give_up(), coordinates ? SaveFence::GivenUp::kForGood : SaveFence::GivenUp::kUnknown);
  }
}

TEST_F(MeetingMember, AddsItsRankToARanklessError) {
  const Error own = member_.of_this_rank(Error(ErrorCode::kNoSpace, "the disk is full"));
  EXPECT_EQ(own.rank(), 1u);
  ASSERT_EQ(own.causes().size(), 1u);
  const Error of_another = Error::of_ranks({Error(ErrorCode::kNoSpace, "the disk is full").rank(0)});
  EXPECT_EQ(member_.of_this_rank(of_another).rank(), 0u);
  member_.place = {1, 1, 1};
  EXPECT_EQ(member_.of_this_rank(Error(ErrorCode::kNoSpace, "the disk is full")).rank(), std::nullopt);
}

TEST_F(MeetingMember, ReportsItsPhaseAndItsBytes) {
  member_.progress.phase = SavePhase::kCommitting;
  member_.progress.bytes_written = 5;
  member_.progress.bytes_total = 7;
  const ProgressReport report = member_.report()();
  EXPECT_EQ(report.phase, SavePhase::kCommitting);
  EXPECT_EQ(report.bytes_written, 5u);
  EXPECT_EQ(report.bytes_total, 7u);
  EXPECT_FALSE(report.pending);
}

}  // namespace
}  // namespace cairn::commit
