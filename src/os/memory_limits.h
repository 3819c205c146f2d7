// MemoryLimits: how much more memory this process may take before the OOM killer of the kernel ends a process.
//
// The kernel charges the pages of a memory file to the cgroup of the process that first writes them. If the limit of
// the group or of an ancestor leaves no room, the kernel does not refuse the pages; its OOM killer ends a process.
// Cairn therefore checks the limits first: the memory cgroups of versions 1 and 2, and the memory of the whole machine.
// Cairn does not check memory.high: above memory.high the kernel slows a process down, but does not end the process.
//
// Thread-safe. Limits that can't be read or have an unexpected form are ignored; no function fails.
#pragma once

#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "os/memory_groups.h"

namespace cairn::os {

// The room under the tightest limit.
struct MemoryRoom {
  std::uint64_t bytes = std::numeric_limits<std::uint64_t>::max();  // may be taken; the reserve is already subtracted
  std::string limited_by;                                           // "cgroup '/sys/fs/...'"; empty without a limit
  std::uint64_t limit_bytes = 0;
  std::uint64_t used_bytes = 0;         // counted against the limit, including reclaimable bytes
  std::uint64_t reclaimable_bytes = 0;  // page cache, without shared memory
  std::uint64_t swap_bytes = 0;         // free swap that the group may use
  std::uint64_t reserve_bytes = 0;      // kept free for the program itself

  std::string figures() const;  // in words, for an error
};

class MemoryLimits {
 public:
  // `root` is prepended to every path: for tests.
  explicit MemoryLimits(std::string root = "") : root_(std::move(root)) {}

  // The tightest limit. If a limit leaves `enough` bytes or more, its reclaimable memory is not read. Reads a few small
  // files.
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
  mutable std::string membership_;  // groups_ belongs to this text: a process may move between groups
  mutable std::vector<MemoryGroup> groups_;
};

}  // namespace cairn::os
