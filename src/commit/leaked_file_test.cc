// Leaked data files, and the lock under which a save removes leaked files.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "commit/testing/one_save.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/scratch_directory.h"
#include "storage/testing/view_storage.h"

namespace cairn::commit {
namespace {

// A real directory, for the modification times of its files.
class LeakedFile : public testing::Test {
 protected:
  static constexpr SaveId kLost{9, 9};

  // Writes a data file that no metadata names, as if written `age` ago.
  void leave(const std::string& name, const std::string& bytes, std::chrono::seconds age = std::chrono::hours(1)) {
    ASSERT_TRUE(disk_->create_whole(name, bytes, Durability::kBuffered));
    const auto path = scratch_.path() / name;
    std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) - age);
  }
  void commit(std::uint64_t number) {
    OneSave save(*disk_, save_number(number));
    ASSERT_TRUE(save.publish());
    ASSERT_TRUE(save.commit());
  }

  storage::ScratchDirectory scratch_;
  std::unique_ptr<storage::Storage> disk_ = storage::PosixStorage::open_directory(scratch_.path()).value();
};

TEST_F(LeakedFile, IsRemovedByTheNextCommit) {
  leave("__0_0.distcp", data_file_of(kLost));
  leave("__12_345.distcp", data_file_of(kLost));
  commit(1);
  EXPECT_EQ(names_in(*disk_).size(), 2u) << testing::PrintToString(names_in(*disk_));
}

TEST_F(LeakedFile, StaysUnlessProvenLeaked) {
  leave("__0_1.distcp", data_file_of(kLost), std::chrono::seconds(200));  // too young
  leave("__0_2.distcp", "of stock torch");
  leave("copy.distcp", data_file_of(kLost));
  leave("__0_4.distcp.bak", data_file_of(kLost));
  leave("__0_x.distcp", data_file_of(kLost));
  leave("__0_5.distcp", data_file_of({9, 10}));
  ASSERT_TRUE(disk_->make_folder(folder_of({9, 10})));  // the folder of the file's save, which has just begun
  ASSERT_TRUE(disk_->create_whole(folder_of({9, 10}) + "/clock", "", Durability::kBuffered));
  const std::size_t before = names_in(*disk_).size();
  commit(1);
  EXPECT_EQ(names_in(*disk_).size(), before + 2) << testing::PrintToString(names_in(*disk_));
}

TEST_F(LeakedFile, StaysIfNamedByARankAlone) {
  const SaveIdentity alone{kLost, kOtherJob, 1};
  {
    const auto transaction = claim_checkpoint(*disk_, alone, {.alone_as_rank = 3}).value();
    leave("__3_0.distcp", data_file_of(kLost));
    manifest::CommitRecord record;
    record.files.push_back({"__3_0.distcp", 4, 0});
    ASSERT_TRUE(transaction->commit("pickle", record, Durability::kBuffered));
  }
  commit(1);
  EXPECT_TRUE(holds(*disk_, "__3_0.distcp"));
}

TEST_F(LeakedFile, StaysIfAMetadataCannotBeRead) {
  leave("__0_0.distcp", data_file_of(kLost));
  leave("__7.metadata", "damaged");
  commit(1);
  EXPECT_TRUE(holds(*disk_, "__0_0.distcp"));
}

// The read number `fails_at` of the metadata fails.
class FailingRead : public storage::ViewStorage {
 public:
  using ViewStorage::ViewStorage;
  Result<std::unique_ptr<storage::ReadableFile>> open(std::string_view name, bool follow_links) const override {
    if (name == kMetadataName && fails_at-- == 0) return Error::from_errno(EIO, "opening");
    return ViewStorage::open(name, follow_links);
  }
  mutable int fails_at = -1;
};

TEST_F(LeakedFile, StaysIfAReadOfMetadataFails) {
  commit(1);
  leave("__0_7.distcp", data_file_of(kLost));
  FailingRead disk(*disk_);
  int failures = 0;
  for (std::uint64_t number = 2;; ++number) {
    SCOPED_TRACE(number);
    OneSave save(disk, save_number(number));
    ASSERT_TRUE(save.publish());
    disk.fails_at = failures;
    const auto committed = save.commit();
    if (disk.fails_at >= 0) break;  // the loop has covered every read
    EXPECT_TRUE(holds(*disk_, "__0_7.distcp"));
    ++failures;
  }
  EXPECT_GE(failures, 3);
  EXPECT_FALSE(holds(*disk_, "__0_7.distcp"));
}

// A storage without locks.
class Lockless : public storage::ViewStorage {
 public:
  using ViewStorage::ViewStorage;
  Result<std::unique_ptr<storage::StorageLock>> lock() override { return std::unique_ptr<storage::StorageLock>(); }
};

TEST_F(LeakedFile, StaysUnlockedWithOneWarning) {
  leave("__0_0.distcp", data_file_of(kLost));
  Lockless disk(*disk_);
  for (const std::uint64_t number : {1u, 2u}) {
    OneSave save(disk, save_number(number));
    ASSERT_TRUE(save.publish());
    const auto committed = save.commit();
    ASSERT_TRUE(committed);
    EXPECT_EQ(committed->warnings.size(), number == 1 ? 1u : 0u);
  }
  EXPECT_TRUE(holds(*disk_, "__0_0.distcp"));
}

// A storage whose lock is lost before the `lost_at`-th call of is_held().
class LosesItsLock : public storage::ViewStorage {
 public:
  LosesItsLock(storage::Storage& storage, int lost_at) : ViewStorage(storage), lost_at_(lost_at) {}
  Result<std::unique_ptr<storage::StorageLock>> lock() override {
    CAIRN_TRY_ASSIGN(auto lock, ViewStorage::lock());
    return std::unique_ptr<storage::StorageLock>(std::make_unique<Lock>(std::move(lock), lost_at_));
  }

 private:
  class Lock final : public storage::StorageLock {
   public:
    Lock(std::unique_ptr<storage::StorageLock> lock, int& lost_at) : lock_(std::move(lock)), lost_at_(lost_at) {}
    bool is_held() const override { return --lost_at_ > 0 && lock_->is_held(); }

   private:
    std::unique_ptr<storage::StorageLock> lock_;
    int& lost_at_;
  };

  int lost_at_;
};

TEST_F(LeakedFile, StaysIfTheLockWasLost) {
  leave("__0_0.distcp", data_file_of(kLost));
  LosesItsLock disk(*disk_, 2);
  OneSave save(disk, save_number(1));
  ASSERT_TRUE(save.publish());
  const auto committed = save.commit();
  ASSERT_TRUE(committed) << committed.error().what();
  ASSERT_EQ(committed->warnings.size(), 1u);
  EXPECT_NE(committed->warnings[0].find("was lost during the commit"), std::string::npos) << committed->warnings[0];
  EXPECT_TRUE(holds(*disk_, "__0_0.distcp"));
}

TEST(LostLock, FailsTheSaveBeforeTheRename) {
  storage::ModelStorage model;
  commit_one(model, save_number(1));
  const auto before = names_in(model);
  LosesItsLock disk(model, 1);
  OneSave save(disk, save_number(2));
  ASSERT_TRUE(save.publish());
  const auto committed = save.commit();
  ASSERT_FALSE(committed);
  EXPECT_EQ(committed.error().code(), ErrorCode::kUnavailable) << committed.error().what();
  save.withdraw();
  EXPECT_EQ(names_in(model), before);
}

}  // namespace
}  // namespace cairn::commit
