#include "os/memory_groups.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/whole_number.h"

namespace cairn::os {
namespace {

// Without a limit, version 1 shows the largest number of whole pages. The number depends on the page size.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;

// Cuts the text up to and including `end` off `rest`, and returns the text before `end`.
std::string_view take_until(std::string_view& rest, char end) {
  const std::size_t length = std::min(rest.find(end), rest.size());
  const std::string_view taken = rest.substr(0, length);
  rest.remove_prefix(std::min(length + 1, rest.size()));
  return taken;
}

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    if (take_until(list, ',') == word) return true;
  }
  return false;
}

// In a path, the kernel writes spaces, tabs, newlines and backslashes as three octal digits.
std::string unescape(std::string_view text) {
  constexpr std::size_t kDigits = 3;
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto code = text[i] == '\\' && text.size() - i > kDigits
                          ? whole_number<std::uint8_t>(text.substr(i + 1, kDigits), 8)
                          : std::nullopt;
    result.push_back(code ? static_cast<char>(*code) : text[i]);
    if (code) i += kDigits;
  }
  return result;
}

struct Mount {
  CgroupVersion version = CgroupVersion::kTwo;
  std::string root;  // the mounted group
  std::string point;
};

// Parses a line: "id parent device root point options [tags...] - type source super-options".
std::optional<Mount> mount_in(std::string_view line) {
  for (int skipped = 0; skipped < 3; ++skipped) take_until(line, ' ');
  const std::string_view root = take_until(line, ' ');
  const std::string_view point = take_until(line, ' ');
  while (!line.empty() && take_until(line, ' ') != "-") {
  }
  const std::string_view type = take_until(line, ' ');
  take_until(line, ' ');
  const bool is_one = type == "cgroup" && has_word(line, "memory");
  if ((!is_one && type != "cgroup2") || !root.starts_with('/') || !point.starts_with('/')) return std::nullopt;
  return Mount{is_one ? CgroupVersion::kOne : CgroupVersion::kTwo, unescape(root), unescape(point)};
}

std::vector<Mount> mounts_in(std::string_view text) {
  std::vector<Mount> mounts;
  while (!text.empty()) {
    if (auto mount = mount_in(take_until(text, '\n'))) mounts.push_back(*std::move(mount));
  }
  return mounts;
}

// `path` below `root`, without the slash in front; nullopt if `path` is not below `root`.
std::optional<std::string_view> below(std::string_view path, std::string_view root) {
  if (root == "/") root = "";
  if (!path.starts_with(root)) return std::nullopt;
  path.remove_prefix(root.size());
  if (!path.empty() && path.front() != '/') return std::nullopt;
  path.remove_prefix(path.find_first_not_of('/') == std::string_view::npos ? path.size() : 1);
  // The kernel shows a group outside the process's namespace with a path of "..".
  return path == ".." || path.starts_with("../") ? std::nullopt : std::optional(path);
}

// Adds the group of the path and its visible ancestors.
void add_groups(std::string_view path, CgroupVersion version, const std::vector<Mount>& mounts,
                std::vector<MemoryGroup>& groups) {
  const Mount* chosen = nullptr;
  std::optional<std::string_view> rest;
  for (const Mount& mount : mounts) {
    if (mount.version != version) continue;
    const auto inside = below(path, mount.root);
    // Choose the mount with the most ancestors.
    const bool is_better = inside && (!rest || inside->size() > rest->size());
    if (chosen != nullptr && !is_better) continue;
    chosen = &mount;
    rest = inside;
  }
  if (chosen == nullptr) return;
  std::string_view left = rest.value_or("");
  for (;;) {
    groups.push_back({version, left.empty() ? chosen->point : chosen->point + "/" + std::string(left)});
    if (left.empty()) return;
    left = left.substr(0, left.find('/') == std::string_view::npos ? 0 : left.rfind('/'));
  }
}

// Calls `with_number(name, number)` for each line "name number".
template <typename Function>
void for_each_number(std::string_view text, char name_end, Function with_number) {
  while (!text.empty()) {
    std::string_view line = take_until(text, '\n');
    const std::string_view name = take_until(line, name_end);
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    if (const auto number = whole_number<std::uint64_t>(take_until(line, ' '))) with_number(name, *number);
  }
}

std::uint64_t add(std::uint64_t a, std::uint64_t b) {
  return a > std::numeric_limits<std::uint64_t>::max() - b ? std::numeric_limits<std::uint64_t>::max() : a + b;
}

}  // namespace

std::vector<MemoryGroup> memory_groups_of(std::string_view membership, std::string_view mounts) {
  const std::vector<Mount> known = mounts_in(mounts);
  std::vector<MemoryGroup> groups;
  while (!membership.empty()) {
    // "number:controllers:path"; version 2 has the number 0 and no controllers.
    std::string_view line = take_until(membership, '\n');
    const std::string_view number = take_until(line, ':');
    const std::string_view controllers = take_until(line, ':');
    if (!line.starts_with('/')) continue;
    if (has_word(controllers, "memory")) add_groups(line, CgroupVersion::kOne, known, groups);
    if (number == "0" && controllers.empty()) add_groups(line, CgroupVersion::kTwo, known, groups);
  }
  return groups;
}

std::optional<std::uint64_t> group_bytes_in(std::string_view text) {
  const auto bytes = whole_number<std::uint64_t>(take_until(text, '\n'));
  return bytes && *bytes < kNoLimit ? bytes : std::nullopt;
}

std::uint64_t reclaimable_bytes_in(CgroupVersion version, std::string_view memory_stat) {
  // In version 1, only the "total_" figures include child groups. The file lists contain no shared memory: pages of
  // shared memory are in the anonymous lists.
  const bool is_one = version == CgroupVersion::kOne;
  std::uint64_t bytes = 0;
  for_each_number(memory_stat, ' ', [&](std::string_view name, std::uint64_t number) {
    const bool counts = is_one ? name == "total_inactive_file" || name == "total_active_file"
                               : name == "inactive_file" || name == "active_file" || name == "slab_reclaimable";
    if (counts) bytes = add(bytes, number);
  });
  return bytes;
}

std::optional<MachineMemory> machine_memory_in(std::string_view meminfo) {
  constexpr std::uint64_t kKibibyte = 1024;
  MachineMemory memory;
  bool has_available = false;
  for_each_number(meminfo, ':', [&](std::string_view name, std::uint64_t kibibytes) {
    const std::uint64_t bytes = std::min(kibibytes, kNoLimit / kKibibyte) * kKibibyte;
    if (name == "MemTotal") memory.total_bytes = bytes;
    if (name == "MemAvailable") memory.available_bytes = bytes;
    if (name == "SwapFree") memory.free_swap_bytes = bytes;
    has_available = has_available || name == "MemAvailable";
  });
  if (!has_available || memory.total_bytes < memory.available_bytes) return std::nullopt;
  return memory;
}

}  // namespace cairn::os
