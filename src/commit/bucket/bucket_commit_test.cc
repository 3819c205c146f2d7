// The commit into a bucket, step by step: bucket_commit.cc, bucket_leftovers.cc, tagged_lease.cc.
#include "commit/bucket/bucket_commit.h"

#include <gtest/gtest.h>

#include "commit/dcp_names.h"
#include "commit/dead_saves.h"
#include "commit/testing/bucket_saves.h"

namespace cairn::commit {
namespace {

using BucketCommit = BucketSaves;

TEST_F(BucketCommit, FirstSaveNamesItsSaveId) {
  BucketProcess saver = process(1);
  ASSERT_TRUE(saver.save());
  EXPECT_EQ(save_id_in_name(saver.name), saver.identity.save_id);
  expect_only(1);
}

TEST_F(BucketCommit, OverwriteLeavesNothingBehind) {
  save_well(1);
  save_well(2);
  expect_only(2);
}

TEST_F(BucketCommit, TakesFewRequests) {
  save_well(1);
  BucketProcess saver = process(2);
  ASSERT_TRUE(saver.save());
  // The lease; five of the trial of conditions; three of the metadata in place; the data; the announcement; the
  // metadata; the listing; the old file; the listing and the end of the folder.
  EXPECT_LE(saver.client->count(), 16u);
}

TEST_F(BucketCommit, SecondJobIsSuperseded) {
  save_well(1);
  BucketProcess loser = process(2);
  ASSERT_TRUE(loser.claim());
  ASSERT_TRUE(loser.write());
  save_well(3, kOtherJob);
  const auto refused = loser.commit();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kSuperseded);
  loser.end();
  expect_only(3);
}

TEST_F(BucketCommit, EarlierSaveOfTheJobIsReplaced) {
  BucketProcess later = process(2);
  ASSERT_TRUE(later.claim());
  ASSERT_TRUE(later.write());
  save_well(1);
  EXPECT_EQ(number_in(disk_), 1);
  ASSERT_TRUE(later.commit());
  later.end();
  expect_only(2);
}

TEST_F(BucketCommit, FailsAfterItsLeaseWasClosed) {
  save_well(1);
  BucketProcess paused = process(2);
  ASSERT_TRUE(paused.claim());
  ASSERT_TRUE(paused.write());
  store_->advance_clock(kSilentSeconds);
  save_well(3);
  expect_only(3);
  const auto late = paused.commit();
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kUnavailable);
  paused.end();
  expect_only(3);
}

TEST_F(BucketCommit, RefusesTheLateWriteOfADeadSave) {
  save_well(1);
  BucketProcess paused = process(2, kOtherJob);
  paused.client->pause_at_write("/.metadata", [this] {
    store_->advance_clock(kSilentSeconds);
    save_well(3);
    expect_only(3);
  });
  const auto late = paused.save();
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kSuperseded);
  expect_only(3);
}

// The write on the absence of the file succeeds after a removal: its files must be there.
TEST_F(BucketCommit, KeepsFilesOfAFirstSaveInDoubt) {
  BucketProcess paused = process(1, kOtherJob);
  paused.client->pause_at_write("/.metadata", [this] {
    store_->advance_clock(kSilentSeconds);
    save_well(2);
    EXPECT_TRUE(disk_.remove(std::string(kMetadataName)));
  });
  EXPECT_TRUE(paused.save());
  EXPECT_EQ(number_in(disk_), 1);
}

TEST_F(BucketCommit, EndsTheDoubtAfterAnHour) {
  BucketProcess killed = process(1, kOtherJob);
  killed.client->pause_at_write(
      "/.metadata", [&killed] { killed.client->die_at(killed.client->count(), StoreClient::Death::kBefore); });
  EXPECT_FALSE(killed.save());
  store_->advance_clock(kSilentSeconds);
  save_well(2);
  EXPECT_GT(store_->contents().size(), 2u);
  store_->advance_clock(kOutOfDoubt);
  save_well(3);
  expect_only(3);
}

TEST_F(BucketCommit, UnknownOutcomeWithdrawsNothing) {
  save_well(1);
  BucketProcess saver = process(2);
  saver.client->pause_at_write("/.metadata", [&saver] { saver.client->leave_unknown_at(saver.client->count()); });
  const auto unknown = saver.save();
  ASSERT_FALSE(unknown);
  EXPECT_NE(std::string(unknown.error().what()).find("unknown"), std::string::npos) << unknown.error().what();
  EXPECT_EQ(number_in(disk_), 1);
  saver.client->land();
  EXPECT_EQ(number_in(disk_), 2);
  store_->advance_clock(kSilentSeconds);
  save_well(3);
  expect_only(3);
}

TEST_F(BucketCommit, RefusesAnUnknownWriteLater) {
  save_well(1);
  BucketProcess saver = process(2);
  saver.client->pause_at_write("/.metadata", [&saver] { saver.client->leave_unknown_at(saver.client->count()); });
  ASSERT_FALSE(saver.save());
  store_->advance_clock(kSilentSeconds);
  save_well(3);
  expect_only(3);
  saver.client->land();
  expect_only(3);
}

TEST_F(BucketCommit, RefusesAStoreWithoutConditions) {
  store_->ignore_conditions();
  const auto refused = process(1).save();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(store_->contents().empty());
}

TEST_F(BucketCommit, SingleWriterUsesAnyStore) {
  store_->ignore_conditions();
  ClaimOptions options;
  options.single_writer = true;
  ASSERT_TRUE(process(1).save(options));
  ASSERT_TRUE(process(2).save(options));
  expect_only(2);
}

TEST_F(BucketCommit, RemovesFilesOfAStockCheckpoint) {
  store_->put(std::string(kPrefix) + "/.metadata", "not a pickle");
  BucketProcess saver = process(1);
  const auto report = saver.save();
  ASSERT_TRUE(report) << report.error().what();
  expect_only(1);
}

TEST_F(BucketCommit, AbandonsUploadsOfADeadSave) {
  BucketProcess killed = process(1);
  ASSERT_TRUE(killed.claim());
  ASSERT_TRUE(killed.client->begin_upload(std::string(kPrefix) + "/" + killed.name));
  killed.client->die_at(killed.client->count(), StoreClient::Death::kBefore);
  killed.end();
  EXPECT_EQ(store_->upload_count(), 1u);
  store_->advance_clock(kSilentSeconds);
  save_well(2);
  expect_only(2);
}

TEST_F(BucketCommit, LeaseOfALivingSaveStays) {
  BucketProcess living = process(2);
  ASSERT_TRUE(living.claim());
  ASSERT_TRUE(living.write());
  save_well(1);
  ASSERT_TRUE(living.commit());
  living.end();
  expect_only(2);
}

TEST_F(BucketCommit, CleaningNeedsNoSave) {
  BucketProcess killed = process(1);
  ASSERT_TRUE(killed.claim());
  ASSERT_TRUE(killed.write());
  killed.client->die_at(killed.client->count(), StoreClient::Death::kBefore);
  killed.end();
  store_->advance_clock(kSilentSeconds);
  const auto removed = remove_dead_saves(disk_, Removal::kDo);
  ASSERT_TRUE(removed) << removed.error().what();
  EXPECT_EQ(removed->saves.size(), 1u);
  EXPECT_TRUE(store_->contents().empty());
}

TEST_F(BucketCommit, RankAloneRemovesItsOldFile) {
  ClaimOptions options;
  options.alone_as_rank = 3;
  BucketProcess first = process(1);
  ASSERT_TRUE(first.save(options));
  BucketProcess second = process(2);
  ASSERT_TRUE(second.save(options));
  EXPECT_EQ(store_->contents().size(), 2u);
}

TEST_F(BucketCommit, OverwriteIsRefusedOnRequest) {
  save_well(1);
  ClaimOptions options;
  options.overwrite = false;
  const auto refused = process(2).save(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  expect_only(1);
}

}  // namespace
}  // namespace cairn::commit
