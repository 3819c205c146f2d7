#include "os/memory_groups.h"

#include <gtest/gtest.h>

#include <random>

namespace cairn::os {
namespace {

using Groups = std::vector<MemoryGroup>;

constexpr auto kOne = CgroupVersion::kOne;
constexpr auto kTwo = CgroupVersion::kTwo;

TEST(MemoryGroups, Version2HasTheAncestors) {
  EXPECT_EQ(memory_groups_of("0::/system.slice/slurmd.service/job_7/step_0\n",
                             "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
                             "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"),
            (Groups{{kTwo, "/sys/fs/cgroup/system.slice/slurmd.service/job_7/step_0"},
                    {kTwo, "/sys/fs/cgroup/system.slice/slurmd.service/job_7"},
                    {kTwo, "/sys/fs/cgroup/system.slice/slurmd.service"},
                    {kTwo, "/sys/fs/cgroup/system.slice"},
                    {kTwo, "/sys/fs/cgroup"}}));
}

TEST(MemoryGroups, Version1HasTheMemoryController) {
  EXPECT_EQ(
      memory_groups_of("9:name=systemd:/memory\n5:cpu,memory:/a/b\n1:cpuset:/c\n",
                       "33 32 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
                       "35 32 0:32 / /sys/fs/cgroup/cpu,memory rw shared:9 master:2 - cgroup cgroup rw,cpu,memory\n"),
      (Groups{{kOne, "/sys/fs/cgroup/cpu,memory/a/b"},
              {kOne, "/sys/fs/cgroup/cpu,memory/a"},
              {kOne, "/sys/fs/cgroup/cpu,memory"}}));
}

TEST(MemoryGroups, HybridMachineHasBothVersions) {
  EXPECT_EQ(memory_groups_of("4:memory:/a\n0::/b\n",
                             "35 32 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                             "41 32 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"),
            (Groups{{kOne, "/sys/fs/cgroup/memory/a"},
                    {kOne, "/sys/fs/cgroup/memory"},
                    {kTwo, "/sys/fs/cgroup/unified/b"},
                    {kTwo, "/sys/fs/cgroup/unified"}}));
}

TEST(MemoryGroups, ContainerSeesWithinItsMount) {
  const std::string docker = "35 32 0:32 /docker/abc /sys/fs/cgroup/memory ro master:11 - cgroup cgroup rw,memory\n";
  EXPECT_EQ(memory_groups_of("4:memory:/docker/abc\n", docker), (Groups{{kOne, "/sys/fs/cgroup/memory"}}));
  EXPECT_EQ(memory_groups_of("4:memory:/docker/abc/job\n", docker),
            (Groups{{kOne, "/sys/fs/cgroup/memory/job"}, {kOne, "/sys/fs/cgroup/memory"}}));
  // A name with the same beginning, a group elsewhere, and a group outside the namespace: only the mount itself is
  // found.
  for (const std::string path : {"/docker/abcdef", "/elsewhere", "/", "/../other", "/..", "/docker/abc/../x"}) {
    const Groups groups = memory_groups_of("4:memory:" + path + "\n", docker);
    ASSERT_FALSE(groups.empty()) << path;
    EXPECT_EQ(groups.back(), (MemoryGroup{kOne, "/sys/fs/cgroup/memory"})) << path;
  }
  EXPECT_EQ(memory_groups_of("0::/\n", "30 22 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
            (Groups{{kTwo, "/sys/fs/cgroup"}}));
  EXPECT_EQ(memory_groups_of("0::/../x\n", "30 22 0:26 /.. /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
            (Groups{{kTwo, "/sys/fs/cgroup/x"}, {kTwo, "/sys/fs/cgroup"}}));
}

TEST(MemoryGroups, PrefersTheMountWithMostGroups) {
  EXPECT_EQ(
      memory_groups_of("0::/pod/box\n",
                       "30 22 0:26 /pod/box /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
                       "31 22 0:26 / /host\\040side/cgroup ro - cgroup2 cgroup rw\n"
                       "32 22 0:26 /other /third ro - cgroup2 cgroup rw\n"),
      (Groups{{kTwo, "/host side/cgroup/pod/box"}, {kTwo, "/host side/cgroup/pod"}, {kTwo, "/host side/cgroup"}}));
}

TEST(MemoryGroups, FindsNoneInForeignTexts) {
  const std::string mounts = "30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  for (const std::string membership : {"", "\n\n", "0", "0:", "0::", "0::relative", ":::::", "memory", "0:cpu:/a"}) {
    EXPECT_TRUE(memory_groups_of(membership, mounts).empty()) << membership;
  }
  for (const std::string mount : {"", "\n", "30 22", "30 22 0:26 / /sys/fs/cgroup rw", "a b c d e f - cgroup2 x y",
                                  "30 22 0:26 / /sys/fs/cgroup rw - cgroup cgroup rw,memoryish", "- - - - - - -"}) {
    EXPECT_TRUE(memory_groups_of("0::/a\n4:memory:/a\n", mount).empty()) << mount;
  }
}

TEST(MemoryGroups, ReadsALimitOrNone) {
  EXPECT_EQ(group_bytes_in("209715200\n"), 209715200U);
  EXPECT_EQ(group_bytes_in("0\n"), 0U);
  for (const std::string text : {"max\n", "9223372036854771712\n", "18446744073709551615\n", "99999999999999999999\n",
                                 "", "\n", "-1\n", "12 MB\n", "0x10\n"}) {
    EXPECT_EQ(group_bytes_in(text), std::nullopt) << text;
  }
}

TEST(MemoryGroups, ReclaimsNoSharedMemory) {
  const std::string one =
      "cache 100\nshmem 40\ninactive_file 1\nactive_file 2\nunevictable 3\ntotal_cache 500\ntotal_shmem 300\n"
      "total_inactive_anon 310\ntotal_inactive_file 150\ntotal_active_file 50\n";
  EXPECT_EQ(reclaimable_bytes_in(kOne, one), 200U);
  const std::string two =
      "anon 9\nfile 600\nkernel_stack 5\nshmem 350\nfile_mapped 1\nfile_dirty 2\ninactive_anon 351\nactive_anon 0\n"
      "inactive_file 200\nactive_file 50\nslab_reclaimable 7\nslab_unreclaimable 8\n";
  EXPECT_EQ(reclaimable_bytes_in(kTwo, two), 257U);
  EXPECT_EQ(reclaimable_bytes_in(kTwo,
                                 "inactive_file\nactive_file x\n\nslab_reclaimable 18446744073709551615\n"
                                 "active_file 5\ninactive_file 18446744073709551615"),
            UINT64_MAX);
  EXPECT_EQ(reclaimable_bytes_in(kOne, ""), 0U);
}

TEST(MachineMemory, ReadsTheKernelsTable) {
  const auto machine = machine_memory_in(
      "MemTotal:       24684084 kB\nMemFree:        22469672 kB\nMemAvailable:   24184544 kB\nBuffers:  1 kB\n"
      "SwapTotal:             8 kB\nSwapFree:              4 kB\nHugePages_Total:       0\n");
  ASSERT_TRUE(machine);
  EXPECT_EQ(machine->total_bytes, 24684084ULL * 1024);
  EXPECT_EQ(machine->available_bytes, 24184544ULL * 1024);
  EXPECT_EQ(machine->free_swap_bytes, 4096U);
  for (const std::string text : {"", "MemTotal: 5 kB\nMemFree: 5 kB\n", "MemTotal: 5 kB\nMemAvailable: 6 kB\n",
                                 "MemTotal 5\nMemAvailable 5\n"}) {
    EXPECT_FALSE(machine_memory_in(text)) << text;
  }
}

TEST(MemoryGroups, RandomTextsStayBelowTheMount) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed=" << seed);
  std::mt19937 random(seed);
  const std::string letters = "0:/.-\n\\ 14memorycgroup2,";
  const auto text = [&](std::size_t length) {
    std::string result;
    for (std::size_t i = 0; i < length; ++i) result.push_back(letters[random() % letters.size()]);
    return result;
  };
  for (int i = 0; i < 2000; ++i) {
    const std::string noise = text(random() % 200);
    for (const MemoryGroup& group :
         memory_groups_of(noise + "\n0::/" + text(20), noise + "\n1 2 0:3 / /m rw - cgroup2 c rw\n" + noise)) {
      EXPECT_TRUE(group.folder.starts_with('/')) << group.folder;
    }
    (void)machine_memory_in(noise);
    (void)reclaimable_bytes_in(kTwo, noise);
    (void)group_bytes_in(noise);
  }
}

}  // namespace
}  // namespace cairn::os
