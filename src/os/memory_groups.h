// MemoryGroups: the memory cgroups that limit a process, and the contents of their files. Pure functions over the texts
// of the kernel below /proc and /sys/fs/cgroup.
//
// An unexpected text yields no value: a limit that can't be read is not checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::os {

enum class CgroupVersion : std::uint8_t { kOne, kTwo };

struct MemoryGroup {
  CgroupVersion version = CgroupVersion::kTwo;
  std::string folder;  // absolute; need not exist

  friend bool operator==(const MemoryGroup&, const MemoryGroup&) = default;
};

// The memory cgroup of a process and its visible ancestors, innermost first. If both cgroup versions are mounted, the
// result has the groups of both. `membership` is /proc/PID/cgroup, `mounts` is /proc/PID/mountinfo. In a container the
// topmost visible folder is often the container's own group. A group outside every mount yields the mount's folder.
std::vector<MemoryGroup> memory_groups_of(std::string_view membership, std::string_view mounts);

// The bytes in a file with a single number. Nullopt if the group has no limit: "max", or the huge number of version 1.
std::optional<std::uint64_t> group_bytes_in(std::string_view text);

// Bytes of a group that the kernel can reclaim without swapping, by the group's memory.stat: the page cache, and in
// version 2 also the kernel's own caches. Shared memory is not included.
std::uint64_t reclaimable_bytes_in(CgroupVersion version, std::string_view memory_stat);

// The memory of the machine, by /proc/meminfo.
struct MachineMemory {
  std::uint64_t total_bytes = 0;
  std::uint64_t available_bytes = 0;  // free, or reclaimable without swapping
  std::uint64_t free_swap_bytes = 0;
};
std::optional<MachineMemory> machine_memory_in(std::string_view meminfo);

}  // namespace cairn::os
