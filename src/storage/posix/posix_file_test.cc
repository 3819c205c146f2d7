// How a file written through the page cache is written back, and how lost bytes are reported.
#include "storage/posix/posix_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/byte_units.h"
#include "os/fd.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/refused_calls.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::storage {
namespace {

// cachestat(2), for systems with older headers.
constexpr long kCachestat = 451;
struct CacheRange {
  std::uint64_t offset;
  std::uint64_t length;
};
struct CachePages {
  std::uint64_t cached, dirty, in_writeback, evicted, recently_evicted;
};

// Two windows.
constexpr std::uint64_t kFileBytes = 128 * kMiB;

Result<void> write_all(WritableFile& file) {
  const std::vector<std::byte> block(4 * kMiB, std::byte{7});
  for (std::uint64_t offset = 0; offset < kFileBytes; offset += block.size()) {
    CAIRN_TRY(file.write_at(offset, block));
  }
  return {};
}

TEST(PosixFile, IsWrittenBackDuringTheWrite) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  struct statfs system {};
  ASSERT_EQ(statfs(scratch.path().c_str(), &system), 0);
  if (system.f_type == TMPFS_MAGIC) GTEST_SKIP() << "there is no device to write back to";
  const auto file = storage->create("file", {.size = kFileBytes, .write_back = true}).value();
  ASSERT_TRUE(write_all(*file));
  const os::Fd fd(::open((scratch.path() / "file").c_str(), O_RDONLY | O_CLOEXEC));
  CacheRange range{0, 64 * kMiB};
  CachePages pages{};
  if (syscall(kCachestat, fd.get(), &range, &pages, 0) != 0) GTEST_SKIP() << "this kernel can't tell: " << errno;
  if (pages.cached == 0) GTEST_SKIP() << "the pages are another file system's";
  EXPECT_EQ(pages.dirty, 0u);
  EXPECT_EQ(pages.in_writeback, 0u);
  EXPECT_TRUE(file->finish(kFileBytes, Durability::kDurable));
}

// Writes a new file through the page cache.
Result<void> write_and_sync(PosixStorage& storage) {
  CAIRN_TRY_ASSIGN(const auto file, storage.create("file", {.size = kFileBytes, .write_back = true}));
  CAIRN_TRY(write_all(*file));
  return file->finish(kFileBytes, Durability::kDurable);
}

// The kernel reports lost bytes once: after sync_file_range has reported them, fsync succeeds.
TEST(PosixFile, FailsIfBytesWereLostOnTheirWay) {
  constexpr unsigned kFlags = 3;
  for (const unsigned when : {unsigned{SYNC_FILE_RANGE_WRITE}, unsigned{SYNC_FILE_RANGE_WAIT_AFTER}}) {
    for (const int error : {EIO, ENODATA, ENOMEM}) {
      const ScratchDirectory scratch;
      const auto storage = PosixStorage::make_directory(scratch.path()).value();
      const RefusedCall lost{SYS_sync_file_range, error, kFlags, when};
      const bool ran = run_with_refused({lost}, [&] {
        const auto written = write_and_sync(*storage);
        ASSERT_FALSE(written);
        EXPECT_EQ(written.error().error_number(), error) << written.error().what();
      });
      if (!ran) GTEST_SKIP() << "no seccomp here";
    }
  }
}

TEST(PosixFile, SyncsWithoutEarlyWriteBack) {
  for (const int error : {ENOSYS, EPERM}) {
    const ScratchDirectory scratch;
    const auto storage = PosixStorage::make_directory(scratch.path()).value();
    const bool ran = run_with_refused({{SYS_sync_file_range, error}}, [&] {
      const auto written = write_and_sync(*storage);
      EXPECT_TRUE(written) << written.error().what();
    });
    if (!ran) GTEST_SKIP() << "no seccomp here";
  }
}

// Four threads write at once, and each write is refused with O_DIRECT.
TEST(PosixFile, WritesAfterRefusedDirectWrites) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  const auto file = storage->create("file", {.size = 4 * kMiB, .direct_io = true}).value();
  if (file->write_alignment() == 1) GTEST_SKIP() << "no direct writes here";
  const std::vector<std::byte> block(kMiB + 1, std::byte{7});
  std::vector<std::jthread> threads;
  for (std::uint64_t number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {  // the address is unaligned: direct writes refuse it
      const auto written = file->write_at(number * kMiB, std::span(block).subspan(1));
      EXPECT_TRUE(written) << written.error().what();
    });
  }
  threads.clear();
  EXPECT_TRUE(file->finish(4 * kMiB, Durability::kDurable));
}

// The kernel brings a part of a large range at one advice.
TEST(PosixFile, IsPrefetchedToTheEndOfTheRange) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  ASSERT_TRUE(storage->create_whole("file", std::string(4 * kMiB, 'x'), Durability::kDurable));
  const auto file = storage->open("file", false).value();
  file->drop_cached(0, 4 * kMiB);
  if (file->is_cached(0, 4 * kMiB)) GTEST_SKIP() << "no page cache to be dropped, or no kernel that can tell";
  file->prefetch(1, 4 * kMiB - 1);
  EXPECT_TRUE(file->is_cached(0, kMiB));
  EXPECT_TRUE(file->is_cached(3 * kMiB, kMiB));
}

// For a file system that refuses O_DIRECT before it looks for the name.
TEST(PosixFile, NeverRemovesAFileThatIsThere) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  ASSERT_TRUE(storage->create_whole("file", "old", Durability::kDurable));
  constexpr unsigned kFlags = 2;
  const bool ran = run_with_refused({{SYS_openat, EINVAL, kFlags, O_DIRECT}}, [&] {
    const auto created = storage->create("file", {.direct_io = true});
    ASSERT_FALSE(created);
    EXPECT_EQ(created.error().error_number(), EEXIST);
  });
  if (!ran) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(read_small(*storage, "file", 100).value(), "old");
}

TEST(PosixFile, CreatesDespiteRefusedDirectIo) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  constexpr unsigned kOpenFlags = 2;
  constexpr unsigned kNewFlags = 2;
  const std::vector<RefusedCall> refused{{SYS_openat, EINVAL, kOpenFlags, O_DIRECT},
                                         {SYS_fcntl, EINVAL, kNewFlags, O_DIRECT}};
  const bool ran = run_with_refused(refused, [&] {
    const auto file = storage->create("file", {.direct_io = true}).value();
    EXPECT_EQ(file->write_alignment(), 1u);
    const std::byte bytes[3]{};
    EXPECT_TRUE(file->write_at(0, bytes));
    EXPECT_TRUE(file->finish(3, Durability::kDurable));
  });
  if (!ran) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(std::filesystem::file_size(scratch.path() / "file"), 3u);
}

}  // namespace
}  // namespace cairn::storage
