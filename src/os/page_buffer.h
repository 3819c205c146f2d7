// PageBuffer: page-aligned memory for requests that go past the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

namespace cairn::os {

// Enough for every device's direct I/O.
inline constexpr std::size_t kPageBytes = 4096;

class PageBuffer {
 public:
  // `bytes` is rounded up to whole pages. The contents are undefined.
  explicit PageBuffer(std::size_t bytes)
      : bytes_((bytes + kPageBytes - 1) / kPageBytes * kPageBytes),
        memory_(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes_ == 0 ? kPageBytes : bytes_))) {
    if (!memory_) throw std::bad_alloc();
  }
  std::span<std::byte> span() const noexcept { return {memory_.get(), bytes_}; }
  std::byte* data() const noexcept { return memory_.get(); }
  std::size_t size() const noexcept { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace cairn::os
