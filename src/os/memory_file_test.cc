#include "os/memory_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace {

// If true, every second fallocate(2) of this thread fails with EINTR, as on a kernel that ends the call at a signal.
thread_local bool interrupt_allocations = false;
thread_local int allocation_count = 0;

}  // namespace

// Takes the place of the C library's function for all code linked into this test program.
extern "C" int fallocate(int fd, int mode, off_t offset, off_t length) {
  if (++allocation_count % 2 == 1 && interrupt_allocations) {
    errno = EINTR;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, length));
}

namespace cairn::os {
namespace {

TEST(MemoryFile, GetsItsPagesInSpiteOfSignals) {
  constexpr std::uint64_t kBytes = 10'000'000 / 4096 * 4096;
  auto memory = MemoryFile::create("test").value();
  ASSERT_TRUE(memory.resize(kBytes));
  allocation_count = 0;
  interrupt_allocations = true;
  const auto populated = memory.populate(4096, kBytes - 4096);
  interrupt_allocations = false;
  EXPECT_TRUE(populated) << populated.error().what();
  EXPECT_GT(allocation_count, 1);
  EXPECT_EQ(memory.present_bytes(), kBytes - 4096);
}

}  // namespace
}  // namespace cairn::os
