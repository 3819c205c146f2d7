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

// An alignment that suffices for direct I/O on every device. A page of the system may be larger (system_page.h).
inline constexpr std::size_t kPageBytes = 4096;
// A large buffer uses huge pages where the system has them. A request then has a few segments for the device instead of
// a thousand, and direct I/O is two to three times as fast.
inline constexpr std::size_t kHugePageBytes = 2 * 1024 * 1024;

class PageBuffer {
 public:
  // `bytes` is rounded up to whole pages. The contents are undefined.
  explicit PageBuffer(std::size_t bytes) : bytes_(rounded_to_pages(bytes)) {
    const bool is_large = bytes_ >= kHugePageBytes;
    void* memory = nullptr;
    if (posix_memalign(&memory, is_large ? kHugePageBytes : kPageBytes, bytes_ == 0 ? kPageBytes : bytes_) != 0) {
      throw std::bad_alloc();
    }
    memory_.reset(static_cast<std::byte*>(memory));
    // The bytes behind the last whole huge page stay in small pages: a huge page for a few bytes would occupy memory,
    // and only where the system has a huge page to spare. The call is a hint: a refusal is ignored.
    if (is_large) madvise(memory, bytes_ / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
  }
  std::span<std::byte> span() const noexcept { return {memory_.get(), bytes_}; }
  std::byte* data() const noexcept { return memory_.get(); }
  std::size_t size() const noexcept { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };
  static std::size_t rounded_to_pages(std::size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace cairn::os
