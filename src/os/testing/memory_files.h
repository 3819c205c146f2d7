// MemoryFiles: a folder with the memory files of a simulated machine: /proc/self/cgroup, mountinfo, /proc/meminfo and
// the files of the cgroups. For MemoryLimits(root).
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "core/byte_units.h"
#include "os/memory_limits.h"

namespace cairn::os {

class MemoryFiles {
 public:
  MemoryFiles() {
    std::string pattern = (std::filesystem::temp_directory_path() / "cairn-memory-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  MemoryFiles(const MemoryFiles&) = delete;
  MemoryFiles& operator=(const MemoryFiles&) = delete;
  ~MemoryFiles() { std::filesystem::remove_all(root_); }

  const std::string& root() const { return root_; }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  // Sets the memory of the machine.
  void set_machine(std::uint64_t total, std::uint64_t available, std::uint64_t free_swap) const {
    write("/proc/meminfo", "MemTotal:       " + std::to_string(total / 1024) +
                               " kB\nMemFree:        1 kB\nMemAvailable:   " + std::to_string(available / 1024) +
                               " kB\nSwapFree:       " + std::to_string(free_swap / 1024) + " kB\n");
  }
  // Puts this process into /job/task of a version 2 hierarchy.
  void join_task() const {
    write("/proc/self/cgroup", "0::/job/task\n");
    write("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  // Leaves `bytes` of room in the group of join_task(), beyond the reserve.
  void leave_in_task(std::uint64_t bytes) const {
    set_group("/job/task", std::to_string(2064 * kMiB), 2000 * kMiB - bytes);
  }
  std::shared_ptr<const MemoryLimits> limits() const { return std::make_shared<const MemoryLimits>(root_); }
  // Writes a version 2 group. `limit` is a decimal number, or "max".
  void set_group(const std::string& folder, const std::string& limit, std::uint64_t used,
                 std::uint64_t file = 0) const {
    const std::string group = "/sys/fs/cgroup" + folder;
    write(group + "/memory.max", limit + "\n");
    write(group + "/memory.current", std::to_string(used) + "\n");
    write(group + "/memory.stat", "anon 1\nfile " + std::to_string(file) + "\nshmem 7\ninactive_file " +
                                      std::to_string(file) + "\nactive_file 0\nslab_reclaimable 0\n");
  }

 private:
  std::string root_;
};

}  // namespace cairn::os
