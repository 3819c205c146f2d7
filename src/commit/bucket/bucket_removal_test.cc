// The removal of a checkpoint from a bucket: bucket_removal.cc, pin.cc.
#include "commit/bucket/bucket_removal.h"

#include <gtest/gtest.h>

#include "commit/pin.h"
#include "commit/testing/bucket_saves.h"

namespace cairn::commit {
namespace {

using BucketRemoval = BucketSaves;

MetadataInPlace in_place(const storage::Storage& disk) { return read_metadata_in_place(disk).value(); }

TEST_F(BucketRemoval, LeavesNothingBehind) {
  save_well(1);
  const auto removed = remove_checkpoint(disk_, in_place(disk_), Removal::kDo);
  ASSERT_TRUE(removed) << removed.error().what();
  EXPECT_EQ(removed->files.size(), 2u);
  EXPECT_TRUE(store_->contents().empty());
}

TEST_F(BucketRemoval, TrialChangesNothing) {
  save_well(1);
  const auto removed = remove_checkpoint(disk_, in_place(disk_), Removal::kTry);
  ASSERT_TRUE(removed) << removed.error().what();
  EXPECT_EQ(removed->files.size(), 2u);
  EXPECT_FALSE(removed->leaves_files);
  expect_only(1);
}

TEST_F(BucketRemoval, ReplacedCheckpointStays) {
  save_well(1);
  const MetadataInPlace chosen = in_place(disk_);
  BucketProcess remover = process(9);
  bool is_saved = false;
  remover.client->pause_at_write("/.cairn-removed", [&] {
    save_well(2);
    is_saved = true;
  });
  const auto refused = remove_checkpoint(remover.disk, chosen, Removal::kDo);
  ASSERT_TRUE(is_saved);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kReplaced);
  expect_only(2);
}

TEST_F(BucketRemoval, PinnedCheckpointStays) {
  save_well(1);
  BucketProcess remover = process(9);
  remover.client->pause_at_write("/.cairn-removed", [this] { EXPECT_TRUE(pin(disk_, "best")); });
  std::string protection;
  const auto refused = remove_checkpoint(remover.disk, in_place(disk_), Removal::kDo, &protection);
  ASSERT_FALSE(refused);
  EXPECT_FALSE(protection.empty());
  EXPECT_EQ(number_in(disk_), 1);
}

TEST_F(BucketRemoval, PinDuringARemovalFails) {
  save_well(1);
  BucketProcess remover = process(9);
  ASSERT_TRUE(remover.disk.create_whole(kRemovedName, "cairn-removed 1\ntag \"other\"\n", Durability::kBuffered));
  EXPECT_FALSE(pin(disk_, "best"));
}

TEST_F(BucketRemoval, IsFinishedAfterAnyDeath) {
  for (const auto death : {StoreClient::Death::kBefore, StoreClient::Death::kAfter}) {
    for (std::uint64_t request = 0; request < 20; ++request) {
      SCOPED_TRACE(request);
      store_->become(storage::MemoryObjectStore());
      save_well(1);
      BucketProcess remover = process(9);
      remover.client->die_at(request, death);
      (void)remove_checkpoint(remover.disk, in_place(disk_), Removal::kDo);
      const int found = number_in(disk_);
      ASSERT_TRUE(found == 1 || found == 0) << found;
      ASSERT_TRUE(finish_removal(disk_, Removal::kDo));
      ASSERT_EQ(number_in(disk_), found);
      if (found == 0) EXPECT_TRUE(store_->contents().empty());
      if (found == 1) expect_only(1);
    }
  }
}

}  // namespace
}  // namespace cairn::commit
