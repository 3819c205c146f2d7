// Saves by the writers of several ranks that meet in a bucket: rank_save.cc, reported_files.cc, decision_watch.cc.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "commit/testing/bucket_saves.h"
#include "commit/testing/dead_lease.h"
#include "commit/testing/rank_saves.h"

namespace cairn::commit {
namespace {

constexpr std::uint32_t kRanksInBucket = 4;

class BucketRanks : public BucketSaves {
 protected:
  // A rank's own connection, which the test keeps. The ranks open their connections on several threads: each has its
  // place in the map before.
  Opening opening(std::uint32_t rank) {
    return [this, rank, &client = clients_[rank]] {
      client = std::make_shared<StoreClient>(store_);
      if (prepare.contains(rank)) prepare.at(rank)(*client);
      return std::make_unique<storage::BucketStorage>(client, "s3://b", std::string(kPrefix));
    };
  }
  GroupSave save(std::uint64_t number) {
    GroupSave group(opening(0), kRanksInBucket, 0);
    group.claim(save_number(number));
    for (std::uint32_t rank = 1; rank < kRanksInBucket; ++rank) group.opened_by[rank] = opening(rank);
    return group;
  }
  std::string folder_of_number(std::uint64_t number) const { return folder_of(save_number(number).save_id); }

  std::map<std::uint32_t, std::function<void(StoreClient&)>> prepare;
  std::map<std::uint32_t, std::shared_ptr<StoreClient>> clients_;  // shared with the storages
};

TEST_F(BucketRanks, SaveTogetherAndOverwrite) {
  expect_all_saved(save(1).run());
  expect_only(1, kRanksInBucket);
  expect_all_saved(save(2).run());
  expect_only(2, kRanksInBucket);
}

TEST_F(BucketRanks, FollowerMakesFewRequests) {
  expect_all_saved(save(1).run());
  for (std::uint32_t rank = 1; rank < kRanksInBucket; ++rank) {
    // The coordinator's lease, its own lease, the file, the report, the decision, the end of its lease; and looks.
    EXPECT_LE(clients_[rank]->count(), 12u) << rank;
  }
}

TEST_F(BucketRanks, FailedRankFailsAll) {
  expect_all_saved(save(1).run());
  GroupSave group = save(2);
  group.instead[2] = [](RankSave& rank) -> Result<RankSaveReport> {
    rank.abandon(Error(ErrorCode::kNoSpace, "no memory to stage the tensors"));
    return Error::of_ranks({Error(ErrorCode::kNoSpace, "no memory to stage the tensors").rank(2)});
  };
  const Reports reports = group.run();
  for (const auto& report : reports) {
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), ErrorCode::kNoSpace) << report.error().what();
  }
  expect_only(1, kRanksInBucket);
}

TEST_F(BucketRanks, AbsentRankFailsAll) {
  GroupSave group = save(1);
  group.options.deadlines.progress = std::chrono::milliseconds(300);
  for (const auto& report : group.run({3})) {
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().rank(), 3u) << report.error().what();
  }
  store_->advance_clock(kSilentSeconds);
  expect_all_saved(save(2).run());
  expect_only(2, kRanksInBucket);
}

// The lease of the coordinator names a process of this host that has ended.
TEST_F(BucketRanks, DeadCoordinatorIsClosed) {
  expect_all_saved(save(1).run());
  GroupSave group = save(2);
  clients_[0]->die_at(clients_[0]->count(), StoreClient::Death::kBefore);
  leave_dead_lease(disk_, folder_of_number(2));
  const Reports reports = group.run({0});
  ASSERT_EQ(reports.size(), kRanksInBucket - 1);
  // A rank that comes when the lease is closed reports that.
  for (const auto& report : reports) EXPECT_FALSE(report);
  const auto lease = read_lease(disk_, folder_of_number(2) + "/" + std::string(kLeaseName));
  ASSERT_TRUE(lease && *lease);
  EXPECT_TRUE((*lease)->is_closed);
  EXPECT_EQ(number_in(disk_), 1);
  store_->advance_clock(kSilentSeconds);
  expect_all_saved(save(3).run());
  expect_only(3, kRanksInBucket);
}

TEST_F(BucketRanks, DeathAfterTheCommitIsASuccess) {
  expect_all_saved(save(1).run());
  GroupSave group = save(2);
  // The coordinator dies right after the write of the metadata.
  clients_[0]->pause_at_write("/.metadata",
                              [this] { clients_[0]->die_at(clients_[0]->count(), StoreClient::Death::kAfter); });
  std::thread undertaker([this] {
    while (number_in(disk_) != 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    // As if the coordinator had been a process of its own.
    const std::string name = folder_of_number(2) + "/" + std::string(kLeaseName);
    const std::string text = disk_.read_tagged(name, kLeaseBytesMax).value().bytes;
    const std::size_t commit = text.find("commit ");
    ASSERT_NE(commit, std::string::npos);
    leave_dead_lease(disk_, folder_of_number(2));
  });
  const Reports reports = group.run();
  undertaker.join();
  for (std::uint32_t rank = 1; rank < kRanksInBucket; ++rank) {
    EXPECT_TRUE(reports[rank]) << reports[rank].error().what();
  }
  EXPECT_EQ(number_in(disk_), 2);
  store_->advance_clock(kSilentSeconds);
  expect_all_saved(save(3).run());
  expect_only(3, kRanksInBucket);
}

}  // namespace
}  // namespace cairn::commit
