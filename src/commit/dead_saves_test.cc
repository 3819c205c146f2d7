#include "commit/dead_saves.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "commit/leftovers.h"
#include "commit/private_folder.h"
#include "commit/save_ticket.h"
#include "commit/testing/dead_lease.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/scratch_directory.h"
#include "storage/testing/view_storage.h"

namespace cairn::commit {
namespace {

constexpr SaveId kDeadSave{7, 8};

// A disk on which calls for one name fail.
class FailingCalls final : public storage::ViewStorage {
 public:
  using ViewStorage::ViewStorage;
  Result<void> remove(std::string_view name) override {
    return name == unremovable ? Error::from_errno(EIO, "removing") : ViewStorage::remove(name);
  }
  Result<std::unique_ptr<storage::ReadableFile>> open(std::string_view name, bool follow_links) const override {
    if (name == stale) return Error::from_errno(ESTALE, "opening");
    return ViewStorage::open(name, follow_links);
  }
  Result<void> sync(std::string_view folder) override {
    return fails_to_sync ? Error::from_errno(EIO, "syncing") : ViewStorage::sync(folder);
  }

  std::string unremovable, stale;
  bool fails_to_sync = false;
};

// A directory with a dead save that has sealed its metadata and written a data file.
class DeadSaves : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(disk_->make_folder(folder_));
    leave_dead_lease(*disk_, folder_);
    ASSERT_TRUE(disk_->create_whole(sealed_, "sealed", Durability::kBuffered));
    ASSERT_TRUE(disk_->create_whole(data_file_, "elements", Durability::kBuffered));
  }
  bool has(const std::string& name) const { return disk_->touched_at(name).has_value(); }

  storage::ScratchDirectory scratch_;
  std::unique_ptr<storage::Storage> disk_ = storage::PosixStorage::open_directory(scratch_.path()).value();
  FailingCalls failing_{*disk_};
  std::string folder_ = folder_of(kDeadSave);
  std::string lease_ = folder_ + "/" + std::string(kLeaseName);
  std::string sealed_ = folder_ + "/metadata";
  std::string data_file_ = data_file_name({{kDeadSave, {}, 0}, false}, 0, 0);
};

TEST_F(DeadSaves, KeepDataOfSealedMetadata) {
  failing_.unremovable = sealed_;
  const auto removed = remove_dead_saves(failing_, Removal::kDo);
  ASSERT_TRUE(removed) << removed.error().what();
  EXPECT_EQ(removed->problems.size(), 1u);
  EXPECT_TRUE(removed->saves.empty()) << "a save with a folder is not removed";
  EXPECT_TRUE(has(data_file_)) << "a paused saver can commit the sealed metadata";
  EXPECT_TRUE(has(lease_));
  failing_.unremovable.clear();
  ASSERT_TRUE(remove_dead_saves(failing_, Removal::kDo));
  EXPECT_FALSE(has(data_file_) || has(folder_));
}

// A power cut could bring back the checkpoint that a commit has replaced.
TEST_F(DeadSaves, KeepAllFilesWithoutASync) {
  failing_.fails_to_sync = true;
  EXPECT_FALSE(remove_dead_saves(failing_, Removal::kDo));
  EXPECT_TRUE(has(data_file_) && has(sealed_) && has(lease_));
}

TEST_F(DeadSaves, AreNotJudgedByALostLease) {
  const auto folder = scratch_.path() / folder_;
  std::filesystem::last_write_time(folder, std::filesystem::last_write_time(folder) - std::chrono::hours(1));
  failing_.stale = lease_;
  const auto removed = remove_dead_saves(failing_, Removal::kDo);
  ASSERT_TRUE(removed) << removed.error().what();
  EXPECT_EQ(removed->problems.size(), 1u);
  EXPECT_TRUE(has(data_file_) && has(lease_));
}

TEST_F(DeadSaves, KeepARewrittenReplacedFile) {
  const std::string old = "__0_0.distcp", rewritten = "__1_0.distcp";
  ASSERT_TRUE(disk_->create_whole(old, "replaced", Durability::kBuffered));
  const std::string list = folder_ + "/" + std::string(kReplacedName);
  ASSERT_TRUE(disk_->create_whole(list, encode_replaced_names({old, rewritten}), Durability::kBuffered));
  ASSERT_TRUE(disk_->create_whole(rewritten, "of a later save of stock torch", Durability::kBuffered));
  const auto later = scratch_.path() / rewritten;
  std::filesystem::last_write_time(later, std::filesystem::last_write_time(later) + std::chrono::seconds(5));
  const auto removed = remove_dead_saves(failing_, Removal::kDo);
  ASSERT_TRUE(removed) << removed.error().what();
  EXPECT_FALSE(has(old));
  EXPECT_TRUE(has(rewritten));
}

TEST_F(DeadSaves, OtherUsersSavesAreNoProblems) {
  storage::ModelStorage disk;
  ASSERT_TRUE(disk.make_folder(folder_));
  leave_dead_lease(disk, folder_);
  disk.give_away(folder_);
  const auto removed = remove_dead_saves(disk, Removal::kDo);
  ASSERT_TRUE(removed) << removed.error().what();
  EXPECT_EQ(removed->of_other_users, std::vector<SaveId>{kDeadSave});
  EXPECT_TRUE(removed->problems.empty());
  EXPECT_TRUE(removed->saves.empty());
}

TEST_F(DeadSaves, LeaveNoFileForTheClock) {
  ASSERT_TRUE(remove_dead_saves(failing_, Removal::kDo));
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path()));
}

}  // namespace
}  // namespace cairn::commit
