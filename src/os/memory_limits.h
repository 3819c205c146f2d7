// MemoryLimits: how much memory this process may still take before the kernel ends a process for want of memory.
//
// The memory of a memory file is charged to the cgroup of the process that makes its pages present. Where a limit of
// that group or of one above it leaves no room, the kernel does not refuse the pages; its OOM killer ends a process. So
// the limits are looked at before. Looked at are the memory cgroups of versions 1 and 2, and the machine as a whole.
// memory.high is not looked at: above it a process is slowed down, not ended.
//
// Thread-safe. Limits that can't be read, or are not as expected, do not count; nothing here fails.
#pragma once

#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "os/memory_groups.h"

namespace cairn::os {

// What the tightest limit leaves.
struct MemoryRoom {
  std::uint64_t bytes = std::numeric_limits<std::uint64_t>::max();  // that may be taken; the reserve is left out
  std::string limited_by;                                           // "cgroup '/sys/fs/...'"; empty if nothing limits
  std::uint64_t limit_bytes = 0;
  std::uint64_t used_bytes = 0;         // of the limit, with what can be reclaimed
  std::uint64_t reclaimable_bytes = 0;  // page cache; shared memory is none
  std::uint64_t swap_bytes = 0;         // free, and open to this group
  std::uint64_t reserve_bytes = 0;      // that stay free for the program itself

  std::string figures() const;  // in words, for an error
};

class MemoryLimits {
 public:
  // `root` is put in front of every path that is read: for tests.
  explicit MemoryLimits(std::string root = "") : root_(std::move(root)) {}

  // The tightest limit; one that leaves `enough` or more need not be looked at closely. A few small files are read.
  MemoryRoom room(std::uint64_t enough = std::numeric_limits<std::uint64_t>::max()) const;

 private:
  std::vector<MemoryGroup> groups() const;
  std::optional<MemoryRoom> room_in(const MemoryGroup& group, std::uint64_t free_swap, std::uint64_t enough) const;
  std::optional<MemoryRoom> room_with_swap_in(const MemoryGroup& group) const;
  std::uint64_t open_swap(const std::vector<MemoryGroup>& groups, std::uint64_t free_swap) const;
  std::optional<std::uint64_t> bytes_in(const MemoryGroup& group, const char* file) const;
  std::uint64_t reclaimable_in(const MemoryGroup& group) const;

  const std::string root_;
  mutable std::mutex mutex_;
  mutable std::string membership_;  // of which these are the groups: a process may be moved
  mutable std::vector<MemoryGroup> groups_;
};

}  // namespace cairn::os
