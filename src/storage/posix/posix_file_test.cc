// What a file that is written through the page cache leaves to be written back at the end.
#include "storage/posix/posix_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "os/fd.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::storage {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

// cachestat(2), which the headers of older systems lack.
constexpr long kCachestat = 451;
struct CacheRange {
  std::uint64_t offset;
  std::uint64_t length;
};
struct CachePages {
  std::uint64_t cached, dirty, in_writeback, evicted, recently_evicted;
};

TEST(PosixFile, IsWrittenBackAsItComes) {
  const ScratchDirectory scratch;
  const auto storage = PosixStorage::make_directory(scratch.path()).value();
  struct statfs system {};
  ASSERT_EQ(statfs(scratch.path().c_str(), &system), 0);
  if (system.f_type == TMPFS_MAGIC) GTEST_SKIP() << "there is no device to write back to";
  const auto file = storage->create("file", {.size = 128 * kMiB, .write_back = true}).value();
  const std::vector<std::byte> block(4 * kMiB, std::byte{7});
  for (std::uint64_t offset = 0; offset < 128 * kMiB; offset += block.size()) {
    ASSERT_TRUE(file->write_at(offset, block));
  }
  const os::Fd fd(::open((scratch.path() / "file").c_str(), O_RDONLY | O_CLOEXEC));
  CacheRange range{0, 64 * kMiB};
  CachePages pages{};
  if (syscall(kCachestat, fd.get(), &range, &pages, 0) != 0) GTEST_SKIP() << "this kernel can't tell: " << errno;
  EXPECT_EQ(pages.dirty, 0u);
  EXPECT_EQ(pages.in_writeback, 0u);
  EXPECT_TRUE(file->finish(128 * kMiB, Durability::kDurable));
}

}  // namespace
}  // namespace cairn::storage
