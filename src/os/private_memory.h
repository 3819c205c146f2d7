// PrivateMemory: anonymous memory of this process, in huge pages where the system has them.
//
// New memory in huge pages takes a page fault for each 2 MiB in place of each 4 KiB, and requests of direct I/O have
// few segments. On a virtual machine that returns its free memory to the host (page reporting), only whole huge pages
// return, and the host provides them slowly: a thread that waits is then served with small pages. A child made by fork
// does not have the memory. The kernel checks nothing ahead: a program that must not run out of memory asks
// MemoryLimits first.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <vector>

#include "os/growing_memory.h"

namespace cairn::os {

class PrivateMemory final : public GrowingMemory {
 public:
  PrivateMemory();
  ~PrivateMemory() override;
  PrivateMemory(const PrivateMemory&) = delete;
  PrivateMemory& operator=(const PrivateMemory&) = delete;

  std::span<std::byte> bytes() const noexcept override { return bytes_; }
  // Counts the pages that populate() has allocated.
  std::uint64_t present_bytes() const noexcept override { return present_bytes_.load(std::memory_order_relaxed); }
  Result<void> resize(std::uint64_t bytes) override;
  // Allocates whole huge pages: those that hold a byte of the range.
  Result<void> populate(std::uint64_t offset, std::uint64_t length, PageSize pages = PageSize::kFastest) override;

 private:
  Result<void> grow(std::uint64_t bytes);
  void shrink(std::uint64_t bytes) noexcept;
  std::uint64_t part_bytes(std::size_t part) const noexcept;
  Result<void> populate_part(std::size_t part, PageSize pages);
  void note_slow_part() noexcept;
  void unmap() noexcept;  // only in the process that made the mapping

  const pid_t process_id_;
  std::span<std::byte> bytes_;
  // For each kHugePageBytes of `bytes_`, whether populate() has allocated the pages. The last part may be smaller.
  std::vector<std::atomic<bool>> present_;
  std::atomic<std::uint64_t> present_bytes_{0};
  std::atomic<unsigned> slow_parts_{0};  // huge pages that the kernel provided slowly, since the last growth
};

}  // namespace cairn::os
