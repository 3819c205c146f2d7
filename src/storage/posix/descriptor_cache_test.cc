// Thousands of files read with few descriptors, and the errors for files that changed while their descriptor was
// closed.
#include "storage/posix/descriptor_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sanitizers.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "os/page_buffer.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::storage {
namespace {

namespace fs = std::filesystem;

// The smallest share of descriptors of a storage.
constexpr std::size_t kHandful = 8;

// Lowers the limit of open descriptors for the length of a test.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit lower = before_;
    lower.rlim_cur = limit;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &lower), 0);
  }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

std::size_t open_descriptors() {
  const auto listed = std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  return static_cast<std::size_t>(listed);
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  ASSERT_TRUE(file.flush());
}

using Files = std::vector<std::unique_ptr<ReadableFile>>;

// Makes and opens `count` files, each with its number as content.
Files open_numbered(const PosixStorage& storage, const fs::path& directory, std::size_t count) {
  Files files;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = "n" + std::to_string(i);
    write_file(directory / name, std::to_string(100'000 + i));
    files.push_back(storage.open(name, false).value());
  }
  return files;
}

Result<std::string> read_text(const ReadableFile& file) {
  std::string text(file.size(), '\0');
  CAIRN_TRY(file.read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

// The complaint about numbered file `n`, read both past and through the page cache; empty if the file is right.
std::string complaint_about(const ReadableFile& file, std::size_t n) {
  const std::string expected = std::to_string(100'000 + n);
  os::PageBuffer buffer(os::kPageBytes);
  if (const auto read = file.read_direct_at(0, buffer.span()); !read) return read.error().what();
  const Result<std::string> cached = read_text(file);
  if (!cached) return cached.error().what();
  const std::string direct(reinterpret_cast<const char*>(buffer.data()), expected.size());
  (void)file.is_cached(0, 1);
  return direct == expected && *cached == expected ? "" : "other bytes than " + expected;
}

TEST(DescriptorCache, ReadsManyFilesInManyThreads) {
  constexpr std::size_t kCount = 3000;
  constexpr std::size_t kThreads = 24;  // more than the descriptors: some threads have to wait
  constexpr int kReads = 500;
  const ScratchDirectory scratch;
  const std::size_t before = open_descriptors();
  const DescriptorLimit limit(64);
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  const Files files = open_numbered(*storage, scratch.path(), kCount);
  EXPECT_LE(open_descriptors(), before + 1 + 64 / 4);
  std::vector<std::string> complaints(kThreads);
  const auto work = [&files, &complaints](std::size_t thread) {
    std::mt19937_64 random(thread);
    for (int i = 0; i < kReads && complaints[thread].empty(); ++i) {
      const std::size_t n = random() % kCount;
      complaints[thread] = complaint_about(*files[n], n);
    }
  };
  std::vector<std::jthread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
  threads.clear();  // joins
  EXPECT_EQ(complaints, std::vector<std::string>(kThreads));
  EXPECT_LE(open_descriptors(), before + 1 + 64 / 4);
}

TEST(DescriptorCache, ReleasesDescriptorsForOthers) {
  if (kAddressSanitized) {
    GTEST_SKIP() << "the sanitizers ask for a pipe to look at an object, and here there is no descriptor left";
  }
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  const Files files = open_numbered(*storage, scratch.path(), 40);
  std::vector<os::Fd> others;  // all descriptors of the process, except those that the storage can close
  const DescriptorLimit limit(open_descriptors() + 20);
  for (;;) {
    os::Fd other(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!other) break;
    others.push_back(std::move(other));
  }
  const auto more = storage->open("n7", false);
  ASSERT_TRUE(more) << more.error().what();
  EXPECT_EQ(read_text(**more).value(), "100007");
}

TEST(DescriptorCache, FilesOutliveTheirStorage) {
  const ScratchDirectory scratch;
  const DescriptorLimit limit(64);
  auto storage = PosixStorage::make_directory(scratch.path()).value();
  const Files files = open_numbered(*storage, scratch.path(), 100);
  storage.reset();
  EXPECT_EQ(read_text(*files[0]).value(), "100000");
}

// A file that was opened, and closed again by the cache to open other files.
class ClosedFile : public testing::Test {
 protected:
  ClosedFile() {
    write_file(path_, "first");
    file_ = storage_->open("file", false).value();
    others_ = open_numbered(*storage_, scratch_.path(), kHandful);
    names_open_ = 0;
    for (const auto& fd : fs::directory_iterator("/proc/self/fd")) {
      std::error_code ignored;
      if (fs::read_symlink(fd.path(), ignored) == path_) ++names_open_;
    }
  }
  void SetUp() override { ASSERT_EQ(names_open_, 0); }

  const ScratchDirectory scratch_;
  const fs::path path_ = scratch_.path() / "file";
  const DescriptorLimit limit_{4 * kHandful};
  std::unique_ptr<PosixStorage> storage_ = PosixStorage::make_directory(scratch_.path()).value();
  std::unique_ptr<ReadableFile> file_;
  Files others_;
  int names_open_ = 0;
};

TEST_F(ClosedFile, IsOpenedAndReadAgain) { EXPECT_EQ(read_text(*file_).value(), "first"); }

TEST_F(ClosedFile, ARemovedFileIsNotFound) {
  fs::remove(path_);
  EXPECT_EQ(read_text(*file_).error().code(), ErrorCode::kNotFound);
}

TEST_F(ClosedFile, AReplacedFileIsNeverRead) {
  write_file(scratch_.path() / "other", "other");
  fs::rename(scratch_.path() / "other", path_);
  const auto read = read_text(*file_);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(read.error().file(), "file");
  os::PageBuffer buffer(os::kPageBytes);
  EXPECT_EQ(file_->read_direct_at(0, buffer.span()).error().code(), ErrorCode::kUnavailable);
}

TEST_F(ClosedFile, AFileChangedInPlaceIsNeverRead) {
  struct stat before {};
  ASSERT_EQ(stat(path_.c_str(), &before), 0);
  write_file(path_, "FIRST");
  // Size and modification time are as before: only the time of the inode change differs.
  const timespec times[] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  EXPECT_EQ(read_text(*file_).error().code(), ErrorCode::kUnavailable);
}

TEST_F(ClosedFile, AFileBehindALinkIsUnsafe) {
  fs::rename(path_, scratch_.path() / "moved");
  fs::create_symlink("moved", path_);
  EXPECT_EQ(read_text(*file_).error().code(), ErrorCode::kUnsafe);
}

TEST(DescriptorCache, ReadsAnOpenFileWithoutAName) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  const Files files = open_numbered(*storage, scratch.path(), 1);
  fs::remove(scratch.path() / "n0");
  EXPECT_EQ(read_text(*files[0]).value(), "100000");
}

}  // namespace
}  // namespace cairn::storage
