#include "machine/machine_findings.h"

#include <linux/io_uring.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>

#include "device/driver.h"
#include "os/memory_limits.h"
#include "os/page_buffer.h"
#include "os/parallel.h"

namespace cairn::checkpointer {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{64} << 20;

MachineFindings memory_findings() {
  const os::MemoryRoom room = os::MemoryLimits().room();
  const bool is_limited = room.bytes != std::numeric_limits<std::uint64_t>::max();
  MachineFinding free{
      "memory_room",
      is_limited ? size_text(static_cast<double>(room.bytes)) + ", limited by " + room.limited_by : "no limit known",
      "an asynchronous save stages the state there; a save that needs more waits, or fails before it "
      "takes memory"};
  if (is_limited) free.number = room.bytes;
  if (room.bytes < 4 * kCopyBytes) {
    return {std::move(free), {"memory_copy", "not measured: too little memory", "as without a measurement"}};
  }
  const os::PageBuffer from(kCopyBytes);
  const os::PageBuffer to(kCopyBytes);
  std::memset(from.data(), 1, from.size());
  std::memset(to.data(), 2, to.size());
  double best = 1e9;
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    std::memcpy(to.data(), from.data(), kCopyBytes);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  const double rate = static_cast<double>(kCopyBytes) / std::max(best, 1e-9);
  const std::size_t threads = os::useful_thread_count();
  MachineFinding copy{"memory_copy", rate_text(rate) + " on one core",
                      "an asynchronous save copies the state with " + std::to_string(threads) +
                          (threads == 1 ? " thread" : " threads") + " while the trainer waits"};
  copy.number = static_cast<std::uint64_t>(rate);
  copy.unit = MachineFinding::Unit::kBytesPerSecond;
  return {std::move(free), std::move(copy)};
}

MachineFinding io_uring_finding() {
  io_uring_params parameters{};
  const long ring = syscall(SYS_io_uring_setup, 1, &parameters);
  const int reason = errno;
  if (ring >= 0) close(static_cast<int>(ring));
  const char* const use = "not used: reads and writes run on threads";
  if (ring >= 0) return {"io_uring", "available", use};
  const char* const kind = reason == ENOSYS ? "missing" : "forbidden";
  return {
      "io_uring",
      std::string(kind) + ": " + std::generic_category().message(reason) + " (errno " + std::to_string(reason) + ")",
      use};
}

// The mode of transparent huge pages that the kernel has chosen; empty if the kernel lacks the setting.
std::string huge_page_mode(const std::string& setting) {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/" + setting);
  std::string modes;
  std::getline(file, modes);
  const std::size_t begin = modes.find('[');
  const std::size_t end = modes.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return modes.substr(begin + 1, end - begin - 1);
}

// Of the private memory of asynchronous saves with threads, which Cairn marks with madvise.
MachineFinding huge_page_finding() {
  const std::string mode = huge_page_mode("enabled");
  const char* const small = "the memory of an asynchronous save with threads lies in small pages";
  if (mode.empty()) return {"huge_pages", "missing: the kernel has no transparent huge pages", small};
  if (mode != "never") {
    return {"huge_pages", "enabled is " + mode,
            "the memory of an asynchronous save with threads lies in huge pages, where the kernel has them ready"};
  }
  return {"huge_pages", "enabled is never", small,
          "as root, write madvise into /sys/kernel/mm/transparent_hugepage/enabled: the first asynchronous save then "
          "touches fewer pages"};
}

// Of the memory files of asynchronous saves with a writer process, which Cairn does not mark with madvise: the modes
// "advise" and "never" leave small pages.
MachineFinding memory_file_finding() {
  const std::string mode = huge_page_mode("shmem_enabled");
  const char* const small = "the memory of an asynchronous save with a writer process lies in small pages";
  if (mode.empty()) return {"memfd_huge_pages", "missing: the kernel has no shmem_enabled", small};
  if (mode == "always" || mode == "within_size" || mode == "force") {
    return {"memfd_huge_pages", "shmem_enabled is " + mode,
            "the memory of an asynchronous save with a writer process lies in huge pages"};
  }
  return {"memfd_huge_pages", "shmem_enabled is " + mode, small,
          "as root, write within_size into /sys/kernel/mm/transparent_hugepage/shmem_enabled: the first asynchronous "
          "save then touches fewer pages"};
}

// "NVRM version: ..."; empty without NVIDIA's kernel module.
std::string kernel_module() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  return line;
}

MachineFindings device_findings() {
  const Result<device::Driver*> driver = device::driver_of(DeviceKind::kCuda);
  const std::string module = kernel_module();
  MachineFinding gpu = driver ? MachineFinding{"gpu", "libcuda.so.1 works",
                                               "tensors of CUDA devices are copied on streams of Cairn's own"}
                              : MachineFinding{"gpu", driver.error().what(), "only tensors in host memory"};
  if (!module.empty()) gpu.found += "; " + module;
  rlimit limit{};
  (void)getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool is_unlimited = limit.rlim_cur == RLIM_INFINITY;
  MachineFinding memlock{"memlock", is_unlimited ? "unlimited" : size_text(static_cast<double>(limit.rlim_cur)),
                         driver ? "staged memory is registered with the driver; where the driver refuses, copies are "
                                  "slower"
                                : "not used: only the driver of a GPU locks memory"};
  if (!is_unlimited) memlock.number = limit.rlim_cur;
  return {std::move(gpu), std::move(memlock)};
}

}  // namespace

std::string size_text(double bytes) {
  char text[32];
  const bool is_large = bytes >= (1 << 30);
  if (bytes < (1 << 20)) {
    std::snprintf(text, sizeof text, "%.0f KiB", bytes / (1 << 10));
  } else {
    std::snprintf(text, sizeof text, is_large ? "%.1f GiB" : "%.0f MiB", bytes / (is_large ? 1 << 30 : 1 << 20));
  }
  return text;
}

std::string rate_text(double bytes_per_second) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GB/s", bytes_per_second / 1e9);
  return text;
}

MachineFindings machine_findings() {
  MachineFindings findings = memory_findings();
  findings.push_back(huge_page_finding());
  findings.push_back(memory_file_finding());
  findings.push_back(io_uring_finding());
  for (MachineFinding& finding : device_findings()) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace cairn::checkpointer
