// Limits read from a folder with the files of a simulated machine.
#include "os/memory_limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "core/byte_units.h"
#include "os/testing/memory_files.h"

namespace cairn::os {
namespace {

constexpr std::uint64_t kUnlimited = UINT64_MAX;

class MemoryLimitsTest : public testing::Test {
 protected:
  std::string digits(std::uint64_t bytes) const { return std::to_string(bytes); }

  MemoryFiles files_;
  MemoryLimits limits_{files_.root()};
};

TEST_F(MemoryLimitsTest, HasNoneInUnreadableFiles) {
  EXPECT_EQ(limits_.room().bytes, kUnlimited);
  EXPECT_EQ(MemoryLimits("/nonexistent").room().bytes, kUnlimited);
  files_.join_task();
  EXPECT_EQ(limits_.room().bytes, kUnlimited);
  files_.write("/sys/fs/cgroup/job/task/memory.max", "many\n");
  files_.write("/sys/fs/cgroup/job/memory.max", "1000000\n");  // the used bytes can't be read
  files_.write("/proc/meminfo", "none of your business\n");
  EXPECT_EQ(limits_.room().bytes, kUnlimited);
}

TEST_F(MemoryLimitsTest, CountsReclaimableMemoryAsRoom) {
  files_.join_task();
  files_.set_group("/job/task", digits(1024 * kMiB), 700 * kMiB, 200 * kMiB);
  files_.set_group("/job", "max", 900 * kMiB);
  files_.set_group("", "max", 900 * kMiB);
  const MemoryRoom room = limits_.room();
  EXPECT_EQ(room.limited_by, "cgroup '/sys/fs/cgroup/job/task'");
  EXPECT_EQ(room.reserve_bytes, 64 * kMiB);
  EXPECT_EQ(room.bytes, (1024 - 700 + 200 - 64) * kMiB);
  EXPECT_NE(room.figures().find(digits(1024 * kMiB)), std::string::npos);
  EXPECT_NE(room.figures().find(digits(700 * kMiB)), std::string::npos);
  EXPECT_NE(room.figures().find(digits(200 * kMiB)), std::string::npos);
}

TEST_F(MemoryLimitsTest, AGroupAboveMayBeTheTighter) {
  files_.join_task();
  files_.set_group("/job/task", digits(1024 * kMiB), 100 * kMiB);
  files_.set_group("/job", digits(2048 * kMiB), 1900 * kMiB);
  EXPECT_EQ(limits_.room().limited_by, "cgroup '/sys/fs/cgroup/job'");
  EXPECT_EQ(limits_.room().bytes, (2048 - 1900 - 64) * kMiB);
  files_.set_group("/job", digits(2048 * kMiB), 2047 * kMiB);
  EXPECT_EQ(limits_.room().bytes, 0U);
}

TEST_F(MemoryLimitsTest, ReserveInSmallAndLargeGroups) {
  files_.join_task();
  for (const auto& [limit, reserve] : {std::pair{std::uint64_t{256}, std::uint64_t{32}},
                                       {512, 64},
                                       {4096, 64},
                                       {12800, 128},
                                       {102400, 1024},
                                       {1024000, 1024}}) {
    files_.set_group("/job/task", digits(limit * kMiB), 0);
    EXPECT_EQ(limits_.room().bytes, (limit - reserve) * kMiB);
  }
}

TEST_F(MemoryLimitsTest, CountsSwapUpToTheGroupsLimit) {
  files_.join_task();
  files_.set_group("/job/task", digits(1024 * kMiB), 1000 * kMiB);
  files_.set_machine(100000 * kMiB, 90000 * kMiB, 500 * kMiB);
  EXPECT_EQ(limits_.room().swap_bytes, 500 * kMiB);
  EXPECT_EQ(limits_.room().bytes, (1024 - 1000 + 500 - 64) * kMiB);
  files_.write("/sys/fs/cgroup/job/task/memory.swap.max", digits(300 * kMiB) + "\n");
  files_.write("/sys/fs/cgroup/job/task/memory.swap.current", digits(100 * kMiB) + "\n");
  EXPECT_EQ(limits_.room().swap_bytes, 200 * kMiB);
  files_.write("/sys/fs/cgroup/job/memory.swap.max", "0\n");
  EXPECT_EQ(limits_.room().swap_bytes, 0U);
}

TEST_F(MemoryLimitsTest, Version1LimitsMemoryWithSwap) {
  files_.write("/proc/self/cgroup", "4:memory:/a/b\n");
  files_.write("/proc/self/mountinfo", "35 32 0:32 / /cg rw - cgroup cgroup rw,memory\n");
  files_.set_machine(100000 * kMiB, 90000 * kMiB, 5000 * kMiB);
  files_.write("/cg/a/b/memory.limit_in_bytes", digits(1024 * kMiB) + "\n");
  files_.write("/cg/a/b/memory.usage_in_bytes", digits(900 * kMiB) + "\n");
  files_.write("/cg/a/b/memory.stat", "inactive_file 5\ntotal_inactive_file " + digits(100 * kMiB) + "\n");
  files_.write("/cg/a/b/memory.memsw.limit_in_bytes", digits(1100 * kMiB) + "\n");
  files_.write("/cg/a/b/memory.memsw.usage_in_bytes", digits(950 * kMiB) + "\n");
  EXPECT_EQ(limits_.room().bytes, (1100 - 950 + 100 - 64) * kMiB);
  EXPECT_NE(limits_.room().limited_by.find("memory and swap together"), std::string::npos);
  files_.write("/cg/a/b/memory.memsw.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limits_.room().bytes, (1024 - 900 + 100 + 5000 - 64) * kMiB);
  files_.write("/cg/a/b/memory.swappiness", "0\n");
  EXPECT_EQ(limits_.room().bytes, (1024 - 900 + 100 - 64) * kMiB);
  // A group without use_hierarchy does not limit its child groups.
  files_.write("/cg/a/memory.limit_in_bytes", digits(10 * kMiB) + "\n");
  files_.write("/cg/a/memory.usage_in_bytes", "0\n");
  files_.write("/cg/a/memory.use_hierarchy", "0\n");
  EXPECT_EQ(limits_.room().limited_by, "cgroup '/cg/a/b'");
  files_.write("/cg/a/memory.use_hierarchy", "1\n");
  EXPECT_EQ(limits_.room().limited_by, "cgroup '/cg/a'");
}

TEST_F(MemoryLimitsTest, TheMachineLimitsWithoutGroups) {
  files_.set_machine(16000 * kMiB, 3000 * kMiB, 100 * kMiB);
  const MemoryRoom room = limits_.room();
  EXPECT_EQ(room.limited_by, "this machine");
  EXPECT_EQ(room.bytes, (3000 + 100 - 160) * kMiB);
}

TEST_F(MemoryLimitsTest, FollowsTheProcessToItsNewGroup) {
  files_.join_task();
  files_.set_group("/job/task", digits(1024 * kMiB), 0);
  files_.set_group("/other", digits(512 * kMiB), 0);
  EXPECT_EQ(limits_.room().limit_bytes, 1024 * kMiB);
  files_.write("/proc/self/cgroup", "0::/other\n");
  EXPECT_EQ(limits_.room().limit_bytes, 512 * kMiB);
}

// memory.stat is read only if the limit is tight: in a large group the kernel takes long to compute memory.stat.
TEST_F(MemoryLimitsTest, SkipsDetailsIfTheRestIsLarge) {
  files_.join_task();
  files_.set_group("/job/task", digits(1024 * kMiB), 100 * kMiB, 100 * kMiB);
  EXPECT_EQ(limits_.room(800 * kMiB).reclaimable_bytes, 0U);
  EXPECT_EQ(limits_.room(900 * kMiB).reclaimable_bytes, 100 * kMiB);
}

TEST(ThisMachine, HasLimitsThatCanBeRead) {
  const MemoryRoom room = MemoryLimits().room();
  if (std::filesystem::exists("/proc/meminfo")) {
    EXPECT_FALSE(room.limited_by.empty());
    EXPECT_LT(room.bytes, kUnlimited);
  }
}

}  // namespace
}  // namespace cairn::os
