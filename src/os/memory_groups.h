// MemoryGroups: which memory cgroups limit a process, and what their files say. Pure functions over the texts that the
// kernel shows below /proc and /sys/fs/cgroup.
//
// A text that is not as expected yields nothing: a limit that can't be read is not checked.
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
  std::string folder;  // absolute; it need not exist

  friend bool operator==(const MemoryGroup&, const MemoryGroup&) = default;
};

// The memory cgroup of a process and its ancestors, as far up as they are visible, the innermost first; with both
// versions mounted, those of both. `membership` is /proc/PID/cgroup, `mounts` is /proc/PID/mountinfo. In a container
// the topmost visible folder is often the container's own group. A group outside every mount yields the mount's folder.
std::vector<MemoryGroup> memory_groups_of(std::string_view membership, std::string_view mounts);

// Bytes in a file that holds one number. Nullopt if there is no limit: "max", or the huge number of version 1.
std::optional<std::uint64_t> group_bytes_in(std::string_view text);

// Bytes that the kernel can take back from a group without swapping, by its memory.stat: page cache, and in version 2
// the kernel's own caches. Shared memory counts among neither.
std::uint64_t reclaimable_bytes_in(CgroupVersion version, std::string_view memory_stat);

// The machine, by /proc/meminfo.
struct MachineMemory {
  std::uint64_t total_bytes = 0;
  std::uint64_t available_bytes = 0;  // free, or reclaimable without swapping
  std::uint64_t free_swap_bytes = 0;
};
std::optional<MachineMemory> machine_memory_in(std::string_view meminfo);

}  // namespace cairn::os
