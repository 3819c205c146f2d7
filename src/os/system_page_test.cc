#include "os/system_page.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "os/memory_file.h"
#include "os/page_buffer.h"
#include "os/private_memory.h"

namespace {

constexpr long kLargePage = 65'536;
// If true, the system of this thread has pages of 64 KiB. The kernel's pages stay as they are.
thread_local bool has_large_pages = false;

class LargePages {
 public:
  LargePages() { has_large_pages = true; }
  ~LargePages() { has_large_pages = false; }
};

}  // namespace

// Takes the place of the C library's function for all code linked into this test program.
extern "C" long sysconf(int name) noexcept {
  if (name == _SC_PAGESIZE) return has_large_pages ? kLargePage : getpagesize();
  static auto* const next = reinterpret_cast<long (*)(int)>(dlsym(RTLD_NEXT, "sysconf"));
  return next(name);
}

namespace cairn::os {
namespace {

constexpr std::uint64_t kLarge = kLargePage;

bool is_mapped(const std::byte* memory) {
  unsigned char present = 0;
  const auto page = static_cast<std::uintptr_t>(getpagesize());
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(memory) / page * page;
  return mincore(reinterpret_cast<void*>(address), 1, &present) == 0;
}

TEST(SystemPage, IsThatOfTheKernel) {
  EXPECT_EQ(system_page_bytes(), static_cast<std::uint64_t>(getpagesize()));
  const LargePages pages;
  EXPECT_EQ(system_page_bytes(), kLarge);
}

TEST(SystemPage, OfSmallerMemoryStaysMapped) {
  const LargePages pages;
  PrivateMemory memory;
  ASSERT_TRUE(memory.resize(3 * kHugePageBytes));
  ASSERT_TRUE(memory.resize(kHugePageBytes + kPageBytes));
  const std::byte* const last_page = memory.bytes().data() + kHugePageBytes;
  EXPECT_EQ(memory.bytes().size(), kHugePageBytes + kPageBytes);
  EXPECT_TRUE(is_mapped(last_page + kLarge - 1));
  EXPECT_FALSE(is_mapped(last_page + kLarge));
  ASSERT_TRUE(memory.resize(kHugePageBytes));
  EXPECT_FALSE(is_mapped(last_page));
}

TEST(SystemPage, OfNewMemoryIsReservedWhole) {
  const LargePages pages;
  PrivateMemory memory;
  ASSERT_TRUE(memory.resize(kHugePageBytes + kPageBytes));
  EXPECT_TRUE(is_mapped(memory.bytes().data() + kHugePageBytes + kLarge - 1));
}

TEST(SystemPage, OfSharedMemoryIsPopulatedWhole) {
  const LargePages pages;
  MemoryFile memory = MemoryFile::create("test").value();
  ASSERT_TRUE(memory.resize(4 * kLarge));
  ASSERT_TRUE(memory.populate(2 * kLarge - 1, 2));
  EXPECT_EQ(memory.present_bytes(), 2 * kLarge);
}

}  // namespace
}  // namespace cairn::os
