#include "os/memory_limits.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "os/fd.h"

namespace cairn::os {
namespace {

// The kernel's texts are shorter; a longer text is treated as unreadable.
constexpr std::size_t kTextBytesMax = 4 * 1024 * 1024;

// The reserve stays free. Between two checks of the limits, the program's heap, the writer's buffers, and the arenas of
// ranks in the same group take memory. 64 MiB are enough for one rank in a small group. A group below 512 MiB keeps an
// eighth free. Large groups hold more ranks: the reserve is 1 % of the limit, at most 1 GiB. 1 GiB is enough for a node
// with some ten ranks: each rank takes at most 64 MiB for its arena between two checks (staging/arena.cc).
constexpr std::uint64_t kReserveMin = std::uint64_t{64} << 20;
constexpr std::uint64_t kReserveMax = std::uint64_t{1} << 30;
constexpr std::uint64_t kReserveShare = 100;
constexpr std::uint64_t kSmallReserveShare = 8;

std::uint64_t reserve_of(std::uint64_t limit) {
  return std::min(std::clamp(limit / kReserveShare, kReserveMin, kReserveMax), limit / kSmallReserveShare);
}

// The numbers are below 2^60 (memory_groups.cc): sums of a few numbers fit into 64 bits.
std::uint64_t minus(std::uint64_t a, std::uint64_t b) { return a - std::min(a, b); }

// The content of the file; empty if the file can't be read.
std::string text_of(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 16 * 1024> piece;
  while (fd && text.size() <= kTextBytesMax) {
    const ssize_t count = read(fd.get(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return "";
    if (count == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
  return "";
}

MemoryRoom room_of(std::string limited_by, std::uint64_t limit, std::uint64_t used) {
  MemoryRoom room;
  room.limited_by = std::move(limited_by);
  room.limit_bytes = limit;
  room.used_bytes = used;
  room.reserve_bytes = reserve_of(limit);
  room.bytes = minus(limit, used + room.reserve_bytes);
  return room;
}

void add(MemoryRoom& room, std::uint64_t reclaimable, std::uint64_t swap) {
  room.reclaimable_bytes = std::min(reclaimable, room.used_bytes);
  room.swap_bytes = swap;
  room.bytes = minus(room.limit_bytes + room.reclaimable_bytes + room.swap_bytes, room.used_bytes + room.reserve_bytes);
}

void keep_tighter(MemoryRoom& tightest, std::optional<MemoryRoom> other) {
  if (other && other->bytes < tightest.bytes) tightest = *std::move(other);
}

}  // namespace

std::string MemoryRoom::figures() const {
  if (limited_by.empty()) return "no limit is known";
  return limited_by + " has a limit of " + std::to_string(limit_bytes) + " bytes, " + std::to_string(used_bytes) +
         " in use, " + std::to_string(reclaimable_bytes) + " of them reclaimable, " + std::to_string(swap_bytes) +
         " bytes of free swap, " + std::to_string(reserve_bytes) + " kept free";
}

std::vector<MemoryGroup> MemoryLimits::groups() const {
  std::string membership = text_of(root_ + "/proc/self/cgroup");
  const std::lock_guard lock(mutex_);
  if (membership != membership_) {
    groups_ = memory_groups_of(membership, text_of(root_ + "/proc/self/mountinfo"));
    membership_ = std::move(membership);
  }
  return groups_;
}

std::optional<std::uint64_t> MemoryLimits::bytes_in(const MemoryGroup& group, const char* file) const {
  return group_bytes_in(text_of(root_ + group.folder + "/" + file));
}

std::uint64_t MemoryLimits::reclaimable_in(const MemoryGroup& group) const {
  return reclaimable_bytes_in(group.version, text_of(root_ + group.folder + "/memory.stat"));
}

// Pages of memory files can be swapped out. Each ancestor of a group also limits the group's swap.
std::uint64_t MemoryLimits::open_swap(const std::vector<MemoryGroup>& groups, std::uint64_t free_swap) const {
  for (const MemoryGroup& group : groups) {
    if (free_swap == 0) break;
    if (group.version == CgroupVersion::kOne) {
      if (bytes_in(group, "memory.swappiness") == std::uint64_t{0}) free_swap = 0;
      continue;
    }
    const auto limit = bytes_in(group, "memory.swap.max");
    if (!limit) continue;
    free_swap = std::min(free_swap, minus(*limit, bytes_in(group, "memory.swap.current").value_or(0)));
  }
  return free_swap;
}

std::optional<MemoryRoom> MemoryLimits::room_in(const MemoryGroup& group, std::uint64_t free_swap,
                                                std::uint64_t enough) const {
  const bool is_one = group.version == CgroupVersion::kOne;
  const auto limit = bytes_in(group, is_one ? "memory.limit_in_bytes" : "memory.max");
  if (!limit) return std::nullopt;
  const auto used = bytes_in(group, is_one ? "memory.usage_in_bytes" : "memory.current");
  if (!used) return std::nullopt;
  MemoryRoom room = room_of("cgroup '" + group.folder + "'", *limit, *used);
  if (room.bytes < enough) add(room, reclaimable_in(group), free_swap);
  return room;
}

// Version 1 also limits the sum of memory and swap.
std::optional<MemoryRoom> MemoryLimits::room_with_swap_in(const MemoryGroup& group) const {
  if (group.version != CgroupVersion::kOne) return std::nullopt;
  const auto limit = bytes_in(group, "memory.memsw.limit_in_bytes");
  if (!limit) return std::nullopt;
  const auto used = bytes_in(group, "memory.memsw.usage_in_bytes");
  if (!used) return std::nullopt;
  MemoryRoom room = room_of("cgroup '" + group.folder + "', memory and swap together,", *limit, *used);
  add(room, reclaimable_in(group), 0);
  return room;
}

MemoryRoom MemoryLimits::room(std::uint64_t enough) const {
  const std::vector<MemoryGroup> groups = this->groups();
  const auto machine = machine_memory_in(text_of(root_ + "/proc/meminfo"));
  const std::uint64_t free_swap = open_swap(groups, machine ? machine->free_swap_bytes : 0);
  MemoryRoom tightest;
  if (machine) {
    tightest = room_of("this machine", machine->total_bytes, machine->total_bytes - machine->available_bytes);
    add(tightest, 0, machine->free_swap_bytes);  // available_bytes already includes reclaimable memory
  }
  for (const MemoryGroup& group : groups) {
    const bool is_one = group.version == CgroupVersion::kOne;
    // Without "use_hierarchy", a version 1 group limits only its own processes, and not its child groups.
    const bool is_above = &group != groups.data() && (&group)[-1].version == group.version;
    if (is_one && is_above && bytes_in(group, "memory.use_hierarchy") == std::uint64_t{0}) continue;
    keep_tighter(tightest, room_in(group, free_swap, enough));
    keep_tighter(tightest, room_with_swap_in(group));
  }
  return tightest;
}

}  // namespace cairn::os
