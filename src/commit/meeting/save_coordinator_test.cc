#include "commit/meeting/save_coordinator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "commit/save_fence.h"
#include "commit/testing/rank_saves.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/view_storage.h"

namespace cairn::commit {
namespace {

using storage::ModelStorage;

// Whether data files wait until the failure of rank 1 was read.
struct Gate {
  std::atomic<bool> is_used{false};
  std::atomic<bool> is_open{false};
};

// Notes the names of the small files that are made: the folder and its marks are gone when a save has ended.
class NotingStorage final : public storage::ViewStorage {
 public:
  NotingStorage(Storage& disk, std::vector<std::string>& names, Gate& gate)
      : ViewStorage(disk), names_(names), gate_(gate) {}
  Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) override {
    names_.emplace_back(name);
    return ViewStorage::create_whole(name, bytes, durability);
  }
  Result<std::unique_ptr<storage::WritableFile>> create(std::string_view name,
                                                        const storage::CreateOptions& options) override {
    while (gate_.is_used && !gate_.is_open) std::this_thread::yield();
    return ViewStorage::create(name, options);
  }
  Result<std::unique_ptr<storage::ReadableFile>> open(std::string_view name, bool follow_links) const override {
    if (name.ends_with("/failed-1")) gate_.is_open = true;
    return ViewStorage::open(name, follow_links);
  }

 private:
  std::vector<std::string>& names_;
  Gate& gate_;
};

class MeetingCoordinator : public testing::Test {
 protected:
  void claim(std::uint32_t count) {
    auto transaction = claim_checkpoint(*member_.storage, identity_).value();
    transaction->keep_folder();
    member_.ticket = transaction->ticket();
    member_.place = {0, count, 0};
    request_ = commit_request_of(member_.ticket, count);
    bytes_.emplace(member_.ticket, 0, count);
    coordinator_.emplace(member_, std::move(transaction));
    options_.write.thread_count = 1;
  }
  Result<RankSaveReport> lead(const std::function<Result<void>()>& may_commit = {}) {
    return coordinator_->lead(bytes_->files(), request_, options_, may_commit);
  }
  // Rank 1 has a lease, and removes the lease once it has read the decision, as a follower does.
  std::jthread entered_rank() {
    EXPECT_TRUE(Lease::take_as_rank(disk_, identity_, 1));  // the file stays
    return std::jthread([this](const std::stop_token& stop) {
      const auto is_decided = [this] { return member_.marks.find_decision().value().has_value(); };
      while (!stop.stop_requested() && !is_decided()) std::this_thread::yield();
      EXPECT_TRUE(disk_.remove(member_.marks.path_of(rank_lease_name(1))));
    });
  }
  bool has_made(std::string_view mark) const {
    const std::string path = member_.marks.path_of(mark);
    return std::find(made_.begin(), made_.end(), path) != made_.end();
  }
  void expect_nothing() const {
    EXPECT_EQ(checkpoint_in(disk_), 0);
    EXPECT_EQ(names_in(disk_).size(), 0u);
  }

  ModelStorage disk_;
  std::vector<std::string> made_;
  Gate gate_;
  SaveIdentity identity_ = save_number(4);
  SaveMember member_{std::make_unique<NotingStorage>(disk_, made_, gate_), SaveTicket{identity_, false}, {}};
  std::optional<SaveCoordinator> coordinator_;
  std::optional<RankBytes> bytes_;
  CommitRequest request_;
  RankSaveOptions options_;
};

TEST_F(MeetingCoordinator, CommitsAloneAndCleansUp) {
  SaveFence fence;
  member_.fence = &fence;
  claim(1);
  const auto report = lead();
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_EQ(checkpoint_in(disk_), 4);
  EXPECT_EQ(names_in(disk_).size(), 2u);
  EXPECT_FALSE(has_made(SaveMarks::kCommitted)) << "there is no other rank to tell";
  EXPECT_EQ(fence.give_up(), SaveFence::GivenUp::kCommitted);
}

TEST_F(MeetingCoordinator, AsksWhenItsFilesAreInPlace) {
  claim(1);
  bool was_in_place = false;
  ASSERT_TRUE(lead([&]() -> Result<void> {
    was_in_place = disk_.open(bytes_->name(), false).has_value() && checkpoint_in(disk_) == 0;
    return {};
  }));
  EXPECT_TRUE(was_in_place);
}

TEST_F(MeetingCoordinator, WithdrawsWithoutPermission) {
  claim(1);
  const auto report = lead([]() -> Result<void> { return Error(ErrorCode::kSuperseded, "a later save is in place"); });
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kSuperseded);
  expect_nothing();
}

TEST_F(MeetingCoordinator, CommitsNothingThatWasGivenUp) {
  SaveFence fence;
  member_.fence = &fence;
  claim(1);
  const auto report = lead([&]() -> Result<void> {
    EXPECT_EQ(fence.give_up(), SaveFence::GivenUp::kForGood) << "its files alone do not decide";
    return {};
  });
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kCancelled);
  expect_nothing();
}

TEST_F(MeetingCoordinator, RefusesOtherFilesThanWritten) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{2}, std::size_t{1}}) {
    claim(1);
    request_.files.resize(count);
    if (count == 1) request_.files[0] = {"another name"};
    const auto report = lead();
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), ErrorCode::kInternal);
    expect_nothing();
  }
}

TEST_F(MeetingCoordinator, ReportsARanksFailureToAll) {
  claim(2);
  ASSERT_TRUE(member_.marks.write_failure(1, Error(ErrorCode::kNoSpace, "the disk is full")));
  const auto report = lead();
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(report.error().rank(), 1u);
  EXPECT_TRUE(has_made(SaveMarks::kFailed));
  EXPECT_FALSE(has_made(SaveMarks::kCommitted));
  expect_nothing();
}

TEST_F(MeetingCoordinator, StopsWritingWhenARankHasFailed) {
  claim(2);
  ASSERT_TRUE(member_.marks.write_failure(1, Error(ErrorCode::kNoSpace, "the disk is full")));
  gate_.is_used = true;
  bool is_writing_on = false;
  options_.write.interrupted = [&] {
    if (gate_.is_open && member_.progress.phase == SavePhase::kWriting) is_writing_on = true;
    return false;
  };
  ASSERT_FALSE(lead());
  EXPECT_TRUE(gate_.is_open);
  EXPECT_FALSE(is_writing_on) << "the failure is the interruption";
}

TEST_F(MeetingCoordinator, FreesItsSpaceForTheDecision) {
  claim(2);
  ASSERT_TRUE(disk_.create_whole(bytes_->name(), "bytes of another program", Durability::kBuffered));
  bool has_looked = false;
  options_.write.interrupted = [&] {
    if (!has_made(SaveMarks::kFailed)) return false;
    has_looked = true;
    EXPECT_FALSE(disk_.open(member_.marks.path_of(bytes_->name()), false));
    return true;
  };
  const std::jthread rank = entered_rank();
  ASSERT_FALSE(lead());
  EXPECT_TRUE(has_looked);
}

TEST_F(MeetingCoordinator, StopsWaitingOnInterrupt) {
  claim(2);
  options_.write.interrupted = [this] { return member_.progress.phase == SavePhase::kWaiting; };
  const auto report = lead();
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kCancelled);
  EXPECT_TRUE(has_made(SaveMarks::kFailed));
  expect_nothing();
}

TEST_F(MeetingCoordinator, CommitsTheFilesOfAllAndSaysSo) {
  claim(2);
  SaveMember other(ModelStorage::view_of(disk_), member_.ticket, {});
  other.place = {1, 2, 0};
  const RankBytes others(member_.ticket, 1, 2);
  ASSERT_TRUE(other.write(others.files(), options_.write));
  const auto report = lead();
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_EQ(checkpoint_in(disk_), 4);
  EXPECT_TRUE(has_made(SaveMarks::kCommitted));
  EXPECT_EQ(names_in(disk_).size(), 3u);
}

TEST_F(MeetingCoordinator, CommitsNoFileOfAnotherProgram) {
  claim(2);
  options_.deadlines.progress = std::chrono::milliseconds(50);
  options_.write.interrupted = [this] {
    return has_made(SaveMarks::kFailed);
  };  // the coordinator then waits for no rank
  ASSERT_TRUE(disk_.create_whole(request_.files[1][0], "bytes of another program", Durability::kBuffered));
  const auto report = lead();
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().rank(), 1u) << report.error().what();
  EXPECT_EQ(checkpoint_in(disk_), 0);
  EXPECT_EQ(names_in(disk_).size(), 1u) << "the other program's file stays";
}

TEST_F(MeetingCoordinator, LeavesNoFileAfterGivingUp) {
  claim(2);
  coordinator_->give_up_all(Error(ErrorCode::kInvalidArgument, "no plan today"));
  expect_nothing();
}

TEST_F(MeetingCoordinator, WaitsForAnEmptyRanksLease) {
  claim(2);
  request_.files[1].clear();
  options_.write.interrupted = [this] { return member_.progress.phase == SavePhase::kWaiting; };
  const auto report = lead();
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kCancelled);
  expect_nothing();
}

TEST_F(MeetingCoordinator, CommitsWithAnEmptyRanksLease) {
  claim(2);
  request_.files[1].clear();
  const std::jthread rank = entered_rank();
  const auto report = lead();
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_EQ(checkpoint_in(disk_), 4);
  EXPECT_TRUE(has_made(SaveMarks::kCommitted));
}

TEST_F(MeetingCoordinator, ReportsTheReasonForGivingUp) {
  claim(2);
  ASSERT_TRUE(member_.marks.write_failure(1, Error(ErrorCode::kNoSpace, "the disk is full")));
  {
    const std::jthread rank = entered_rank();
    coordinator_->give_up_all(Error(ErrorCode::kInvalidArgument, "no plan today"));
  }
  EXPECT_TRUE(has_made(SaveMarks::kFailed));
  expect_nothing();
}

}  // namespace
}  // namespace cairn::commit
