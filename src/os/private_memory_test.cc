#include "os/private_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#include "os/page_buffer.h"
#include "os/system_page.h"

namespace {

constexpr int kAllocate = 23;  // MADV_POPULATE_WRITE
// If true, an allocation of this thread takes two milliseconds of processor time for each call, as on a virtual machine
// whose host provides the pages.
thread_local bool host_is_slow = false;
thread_local int refusals_of_huge_pages = 0;

void spend_two_milliseconds() {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1'000'000'000 + time.tv_nsec;
  };
  for (const auto end = now() + 2'000'000; now() < end;) {
  }
}

}  // namespace

// Takes the place of the C library's function for all code linked into this test program.
extern "C" int madvise(void* memory, size_t bytes, int advice) noexcept {
  if (advice == kAllocate && host_is_slow) spend_two_milliseconds();
  if (advice == MADV_NOHUGEPAGE) ++refusals_of_huge_pages;
  return static_cast<int>(syscall(SYS_madvise, memory, bytes, advice));
}

namespace cairn::os {
namespace {

constexpr std::uint64_t kHuge = kHugePageBytes;

bool all_are(std::span<const std::byte> bytes, int value) {
  return std::all_of(bytes.begin(), bytes.end(), [value](std::byte b) { return b == static_cast<std::byte>(value); });
}

// The exit status of a child made by fork that runs `work`.
template <typename Work>
int status_of_child(Work work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(PrivateMemory, KeepsPresentBytesAndAddsZeros) {
  PrivateMemory memory;
  EXPECT_TRUE(memory.bytes().empty());
  std::uint64_t before = 0;
  for (const std::uint64_t bytes : {std::uint64_t{1}, 3 * kHuge + 5, 7 * kHuge, 40 * kHuge + 4096}) {
    ASSERT_TRUE(memory.resize(bytes));
    EXPECT_EQ(memory.bytes().size(), (bytes + 4095) / 4096 * 4096);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.bytes().data()) % kHuge, 0U);
    EXPECT_TRUE(all_are(memory.bytes().first(before), 7));
    EXPECT_TRUE(all_are(memory.bytes().subspan(before), 0));
    std::memset(memory.bytes().data(), 7, memory.bytes().size());
    before = memory.bytes().size();
  }
  ASSERT_TRUE(memory.resize(kHuge + 4096));
  EXPECT_EQ(memory.bytes().size(), kHuge + 4096);
  EXPECT_TRUE(all_are(memory.bytes(), 7));
  ASSERT_TRUE(memory.resize(2 * kHuge));
  EXPECT_TRUE(all_are(memory.bytes().first(kHuge + 4096), 7));
  EXPECT_TRUE(all_are(memory.bytes().subspan(kHuge + 4096), 0)) << "pages that were cut off came back";
  ASSERT_TRUE(memory.resize(0));
  EXPECT_TRUE(memory.bytes().empty());
}

TEST(PrivateMemory, CountsTheAllocatedPages) {
  PrivateMemory memory;
  ASSERT_TRUE(memory.resize(10 * kHuge + 8192));
  EXPECT_EQ(memory.present_bytes(), 0U);
  ASSERT_TRUE(memory.populate(kHuge + 1, 1));
  EXPECT_EQ(memory.present_bytes(), kHuge);
  ASSERT_TRUE(memory.populate(kHuge - 1, 2));  // one new huge page, and the present one
  EXPECT_EQ(memory.present_bytes(), 2 * kHuge);
  ASSERT_TRUE(memory.populate(10 * kHuge, UINT64_C(1) << 30));
  EXPECT_EQ(memory.present_bytes(), 2 * kHuge + 8192);
  ASSERT_TRUE(memory.resize(kHuge));
  EXPECT_EQ(memory.present_bytes(), kHuge);
  ASSERT_TRUE(memory.resize(20 * kHuge));
  EXPECT_EQ(memory.present_bytes(), kHuge);
  ASSERT_TRUE(memory.populate(0, 20 * kHuge));
  EXPECT_EQ(memory.present_bytes(), 20 * kHuge);
  ASSERT_TRUE(memory.resize(0));
  EXPECT_EQ(memory.present_bytes(), 0U);
}

TEST(PrivateMemory, HasTheCountedPages) {
  PrivateMemory memory;
  const std::uint64_t page = system_page_bytes();
  const std::uint64_t bytes = 5 * kHuge + 3 * page;
  ASSERT_TRUE(memory.resize(bytes));
  ASSERT_TRUE(memory.populate(2 * kHuge, bytes));
  std::vector<unsigned char> pages(bytes / page);
  ASSERT_EQ(mincore(memory.bytes().data(), bytes, pages.data()), 0);
  const auto present = std::count_if(pages.begin(), pages.end(), [](unsigned char it) { return (it & 1) != 0; });
  EXPECT_EQ(static_cast<std::uint64_t>(present) * page, memory.present_bytes());
}

TEST(PrivateMemory, DoesNotWaitForSlowHugePages) {
  for (const PageSize pages : {PageSize::kHuge, PageSize::kFastest}) {
    PrivateMemory memory;
    ASSERT_TRUE(memory.resize(8 * kHuge));
    refusals_of_huge_pages = 0;
    host_is_slow = true;
    const auto first = memory.populate(0, kHuge, pages);
    const int after_one = refusals_of_huge_pages;
    const auto rest = memory.populate(kHuge, 7 * kHuge, pages);
    host_is_slow = false;
    EXPECT_TRUE(first && rest);
    EXPECT_EQ(after_one, 0);
    EXPECT_EQ(refusals_of_huge_pages, pages == PageSize::kFastest ? 1 : 0);
    EXPECT_EQ(memory.present_bytes(), 8 * kHuge);
  }
}

TEST(PrivateMemory, PopulatesInSeveralThreads) {
  PrivateMemory memory;
  constexpr std::uint64_t kBytes = 16 * kHuge;
  ASSERT_TRUE(memory.resize(kBytes));
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&memory, thread] {
        constexpr std::uint64_t kStep = 3 * kHuge / 4;  // neighbours share huge pages
        for (std::uint64_t at = thread * kStep; at < kBytes; at += 4 * kStep) {
          EXPECT_TRUE(memory.populate(at, kStep));
          const std::uint64_t length = std::min(kStep, kBytes - at);
          std::memset(memory.bytes().data() + at, 9, length);
        }
      });
    }
  }
  EXPECT_EQ(memory.present_bytes(), kBytes);
  EXPECT_TRUE(all_are(memory.bytes(), 9));
}

TEST(PrivateMemory, ReportsALackOfAddresses) {
  PrivateMemory memory;
  ASSERT_TRUE(memory.resize(kHuge));
  std::memset(memory.bytes().data(), 5, kHuge);
  const auto grown = memory.resize(UINT64_C(1) << 60);
  ASSERT_FALSE(grown);
  EXPECT_EQ(grown.error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(memory.bytes().size(), kHuge);
  EXPECT_TRUE(all_are(memory.bytes(), 5));
}

// The child's range of addresses may hold an unrelated mapping when the child destroys the object.
TEST(PrivateMemory, IsNotInheritedByAChild) {
  auto memory = std::make_unique<PrivateMemory>();
  ASSERT_TRUE(memory->resize(4 * kHuge));
  std::memset(memory->bytes().data(), 3, memory->bytes().size());
  const int status = status_of_child([&memory] {
    const std::span<std::byte> range = memory->bytes();
    std::vector<unsigned char> pages(range.size() / system_page_bytes());
    if (mincore(range.data(), range.size(), pages.data()) == 0) return 1;
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    void* const other = mmap(range.data(), range.size(), PROT_READ | PROT_WRITE, kFlags, -1, 0);
    if (other == MAP_FAILED) return 2;
    memory.reset();
    *static_cast<char*>(other) = 1;  // dies if the mapping is gone
    return 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(all_are(memory->bytes(), 3));
}

}  // namespace
}  // namespace cairn::os
