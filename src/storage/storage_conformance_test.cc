// What every Storage promises, tried on each of them; and what only a real directory can show.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "os/page_buffer.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/model_storage.h"

namespace cairn::storage {
namespace {

namespace fs = std::filesystem;

// A directory of its own for each test, in the folder where the tests run: a disk, not a tmpfs.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string pattern = (fs::current_path() / "build" / "scratch-XXXXXX").string();
    fs::create_directories(fs::path(pattern).parent_path());
    path_ = mkdtemp(pattern.data());
  }
  ~ScratchDirectory() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string read_all(const Storage& storage, std::string_view name) {
  return read_small(storage, name, 1 << 20).value();
}

class StorageConformance : public testing::TestWithParam<bool> {
 protected:
  StorageConformance() {
    if (GetParam()) {
      storage_ = PosixStorage::make_directory(scratch_.path()).value();
    } else {
      storage_ = std::make_unique<ModelStorage>();
    }
  }
  ScratchDirectory scratch_;
  std::unique_ptr<Storage> storage_;
};

TEST_P(StorageConformance, WritesWhatItReads) {
  for (const bool direct : {false, true}) {
    const std::string name = direct ? "direct" : "buffered";
    auto file = storage_->create(name, {.size = 10'000, .direct_io = direct}).value();
    os::PageBuffer buffer(12'288);
    std::memset(buffer.data(), 'x', buffer.size());
    ASSERT_TRUE(file->write_at(0, buffer.span()));
    ASSERT_TRUE(file->finish(10'000, Durability::kDurable));
    EXPECT_EQ(read_all(*storage_, name), std::string(10'000, 'x'));
  }
}

TEST_P(StorageConformance, NeverReplacesOnPublish) {
  ASSERT_TRUE(storage_->create_whole("old", "1", Durability::kDurable));
  ASSERT_TRUE(storage_->create_whole("new", "2", Durability::kDurable));
  EXPECT_FALSE(storage_->publish("new", "old"));
  EXPECT_EQ(read_all(*storage_, "old"), "1");
  EXPECT_FALSE(storage_->create_whole("old", "3", Durability::kDurable));
  EXPECT_FALSE(storage_->create("old", {}));
  ASSERT_TRUE(storage_->publish("new", "free"));
  EXPECT_EQ(read_all(*storage_, "free"), "2");
  EXPECT_EQ(storage_->open("new", false).error().code(), ErrorCode::kNotFound);
}

TEST_P(StorageConformance, ReplacesOnReplace) {
  ASSERT_TRUE(storage_->create_whole("old", "1", Durability::kDurable));
  ASSERT_TRUE(storage_->create_whole("new", "2", Durability::kDurable));
  ASSERT_TRUE(storage_->replace("new", "old"));
  EXPECT_EQ(read_all(*storage_, "old"), "2");
}

TEST_P(StorageConformance, ListsAndRemoves) {
  ASSERT_TRUE(storage_->make_folder("folder"));
  EXPECT_FALSE(storage_->make_folder("folder"));
  ASSERT_TRUE(storage_->create_whole("folder/file", "1", Durability::kDurable));
  EXPECT_EQ(storage_->list("folder").value().size(), 1u);
  EXPECT_FALSE(storage_->remove_folder("folder"));
  EXPECT_TRUE(storage_->remove("folder/file"));
  EXPECT_TRUE(storage_->remove("folder/file"));
  EXPECT_TRUE(storage_->sync("folder"));
  EXPECT_TRUE(storage_->remove_folder("folder"));
  EXPECT_TRUE(storage_->list("").value().empty());
  EXPECT_TRUE(storage_->sync());
}

TEST_P(StorageConformance, ReadsNothingBeyondTheEnd) {
  ASSERT_TRUE(storage_->create_whole("file", "12345", Durability::kDurable));
  const auto file = storage_->open("file", false).value();
  std::byte bytes[4];
  EXPECT_TRUE(file->read_at(1, bytes));
  EXPECT_EQ(file->read_at(2, bytes).error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(file->read_at(~std::uint64_t{0}, bytes).error().code(), ErrorCode::kCorrupt);
}

INSTANTIATE_TEST_SUITE_P(Storages, StorageConformance, testing::Bool(),
                         [](const auto& which) { return which.param ? "Posix" : "Model"; });

TEST(PosixStorage, RefusesNamesThatLeaveTheDirectory) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  for (const std::string_view name : {"", "/etc/passwd", "../x", "a/../../x", ".."}) {
    EXPECT_EQ(storage->open(name, true).error().code(), ErrorCode::kUnsafe) << name;
    EXPECT_EQ(storage->remove(name).error().code(), ErrorCode::kUnsafe) << name;
  }
}

TEST(PosixStorage, FollowsALinkOnlyWhenAsked) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path() / "checkpoint").value();
  std::ofstream(scratch.path() / "secret") << "secret";
  fs::create_symlink("../secret", scratch.path() / "checkpoint/link");
  fs::create_directory_symlink("..", scratch.path() / "checkpoint/up");
  EXPECT_EQ(storage->open("link", false).error().code(), ErrorCode::kUnsafe);
  EXPECT_EQ(storage->open("up/secret", false).error().code(), ErrorCode::kUnsafe);
  EXPECT_TRUE(storage->open("link", true));
  EXPECT_FALSE(storage->remove("link"));
  EXPECT_FALSE(storage->remove("up/secret"));
  EXPECT_TRUE(fs::exists(scratch.path() / "secret"));
}

TEST(PosixStorage, NeverWaitsOnAPipe) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  ASSERT_EQ(mkfifo((scratch.path() / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(storage->open("pipe", false).error().code(), ErrorCode::kUnsafe);
  EXPECT_EQ(storage->open("pipe", true).error().code(), ErrorCode::kUnsafe);
}

TEST(PosixStorage, DirectReadsGiveTheSameBytes) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  std::string text(3 * os::kPageBytes + 100, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7);
  ASSERT_TRUE(storage->create_whole("file", text, Durability::kDurable));
  const auto file = storage->open("file", false).value();
  os::PageBuffer buffer(4 * os::kPageBytes);
  ASSERT_TRUE(file->read_direct_at(os::kPageBytes, buffer.span().first(3 * os::kPageBytes)));
  EXPECT_EQ(std::memcmp(buffer.data(), text.data() + os::kPageBytes, text.size() - os::kPageBytes), 0);
  EXPECT_FALSE(file->read_direct_at(8 * os::kPageBytes, buffer.span()));
}

TEST(PosixStorage, SaysThatTheDirectoryIsMissing) {
  const ScratchDirectory scratch;
  EXPECT_EQ(PosixStorage::open_directory(scratch.path() / "none").error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairn::storage
