// ScratchMemoryGroup: a new memory cgroup for one test, below the cgroup of this process, with a limit and without
// swap.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "os/memory_groups.h"

namespace cairn::os {

class ScratchMemoryGroup {
 public:
  // If the group can't be made (no memory controller, no permission), why_not() gives the reason.
  explicit ScratchMemoryGroup(std::uint64_t limit_bytes) {
    const std::string name = "cairn-test-" + std::to_string(getpid());
    for (const MemoryGroup& group : memory_groups_of(text_of("/proc/self/cgroup"), text_of("/proc/self/mountinfo"))) {
      const std::filesystem::path folder = std::filesystem::path(group.folder) / name;
      std::error_code error;
      if (!std::filesystem::create_directory(folder, error)) {
        why_not_ = folder.string() + ": " + error.message();
        continue;
      }
      if (set_limit(group.version, folder, limit_bytes)) {
        folder_ = folder;
        why_not_.clear();
        return;
      }
      why_not_ = folder.string() + ": its memory can't be limited";
      std::filesystem::remove(folder, error);
    }
  }
  ScratchMemoryGroup(const ScratchMemoryGroup&) = delete;
  ScratchMemoryGroup& operator=(const ScratchMemoryGroup&) = delete;
  // Retries: the kernel may list a process for a moment after its wait().
  ~ScratchMemoryGroup() {
    std::error_code error;
    for (int tries = 0; !folder_.empty() && tries < 500 && !std::filesystem::remove(folder_, error) && error; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  const std::string& why_not() const { return why_not_; }
  const std::filesystem::path& folder() const { return folder_; }
  // Moves the calling process into the group; memory taken from now on counts.
  bool join() const { return write(folder_ / "cgroup.procs", "0"); }

 private:
  static std::string text_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static bool write(const std::filesystem::path& path, const std::string& text) {
    std::ofstream file(path);
    file << text << std::flush;
    return static_cast<bool>(file);
  }
  static bool set_limit(CgroupVersion version, const std::filesystem::path& folder, std::uint64_t bytes) {
    const std::string digits = std::to_string(bytes);
    const bool is_one = version == CgroupVersion::kOne;
    write(folder / (is_one ? "memory.swappiness" : "memory.swap.max"), "0");
    const std::filesystem::path limit = folder / (is_one ? "memory.limit_in_bytes" : "memory.max");
    return std::filesystem::exists(limit) && write(limit, digits) && text_of(limit) == digits + "\n";
  }

  std::filesystem::path folder_;
  std::string why_not_ = "no memory cgroup is mounted";
};

}  // namespace cairn::os
