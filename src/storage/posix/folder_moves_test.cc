// Folders that are opened as storages, moved and exchanged.
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/syscall.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "storage/posix/posix_storage.h"
#include "storage/testing/refused_calls.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::storage {
namespace {

namespace fs = std::filesystem;

class FolderMoves : public testing::Test {
 protected:
  FolderMoves() {
    for (const char* name : {"one", "two"}) {
      fs::create_directories(root_ / name);
      std::ofstream(root_ / name / "file") << name;
    }
    fs::create_directories(root_ / "empty");
  }
  std::string file_in(const std::string& folder) { return read_small(*storage_, folder + "/file", 100).value(); }

  ScratchDirectory scratch_;
  fs::path root_ = scratch_.path();
  std::unique_ptr<Storage> storage_ = PosixStorage::open_directory(root_).value();
};

TEST_F(FolderMoves, GiveFreeAndEmptyNames) {
  ASSERT_TRUE(storage_->move_folder("one", "free"));
  EXPECT_EQ(file_in("free"), "one");
  ASSERT_TRUE(storage_->move_folder("free", "empty"));
  EXPECT_EQ(file_in("empty"), "one");
  EXPECT_FALSE(fs::exists(root_ / "free"));
}

TEST_F(FolderMoves, RefuseTakenNames) {
  std::ofstream(root_ / "text") << "text";
  for (const char* taken : {"two", "text"}) {
    const auto moved = storage_->move_folder("one", taken);
    ASSERT_FALSE(moved) << taken;
    EXPECT_EQ(moved.error().code(), ErrorCode::kUnavailable);
    EXPECT_EQ(moved.error().error_number(), EEXIST);
  }
  EXPECT_EQ(file_in("one"), "one");
  EXPECT_EQ(file_in("two"), "two");
}

TEST_F(FolderMoves, KeepAnOpenedFolderUsable) {
  const auto opened = storage_->open_folder("one").value();
  ASSERT_TRUE(storage_->move_folder("one", "free"));
  ASSERT_TRUE(opened->create_whole("more", "1", Durability::kDurable));
  EXPECT_TRUE(fs::exists(root_ / "free" / "more"));
}

TEST_F(FolderMoves, ExchangeTwoFolders) {
  ASSERT_TRUE(storage_->exchange_folders("one", "two"));
  EXPECT_EQ(file_in("one"), "two");
  EXPECT_EQ(file_in("two"), "one");
  EXPECT_EQ(storage_->exchange_folders("one", "none").error().code(), ErrorCode::kNotFound);
}

TEST_F(FolderMoves, FindWhetherFoldersExchange) {
  EXPECT_TRUE(storage_->can_exchange_folders().value());
  const bool ran = run_with_refused({{SYS_renameat2, EINVAL, 4, RENAME_EXCHANGE}}, [&] {
    EXPECT_FALSE(storage_->can_exchange_folders().value());
    EXPECT_EQ(storage_->exchange_folders("one", "two").error().code(), ErrorCode::kUnsupported);
  });
  if (!ran) GTEST_SKIP() << "needs filters of system calls";
  EXPECT_EQ(file_in("one"), "one");
  EXPECT_EQ(storage_->list("").value().size(), 3u);
}

TEST_F(FolderMoves, OpenFoldersAndParents) {
  const auto opened = storage_->open_folder("one").value();
  EXPECT_EQ(read_small(*opened, "file", 100).value(), "one");
  const auto parent = opened->open_parent().value();
  EXPECT_EQ(read_small(*parent, "two/file", 100).value(), "two");
  EXPECT_EQ(storage_->open_folder("none").error().code(), ErrorCode::kNotFound);
  fs::create_directory_symlink("one", root_ / "link");
  EXPECT_EQ(storage_->open_folder("link").error().code(), ErrorCode::kUnsafe);
}

}  // namespace
}  // namespace cairn::storage
