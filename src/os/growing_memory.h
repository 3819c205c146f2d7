// GrowingMemory: mapped memory whose size changes, and whose pages are allocated on request.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn::os {

enum class PageSize {
  kFastest,  // huge pages if the kernel provides them quickly
  kHuge,     // huge pages, also if the kernel provides them slowly
};

// Only one thread at a time may change the size.
class GrowingMemory {
 public:
  virtual ~GrowingMemory() = default;

  virtual std::span<std::byte> bytes() const noexcept = 0;
  // Bytes of memory taken by the pages, in RAM or swap. From any thread.
  virtual std::uint64_t present_bytes() const noexcept = 0;
  // Changes the size to `bytes`, rounded up to pages. Present bytes keep their content; new bytes read as zeros; the
  // pages cut off are freed. Earlier spans become invalid. kNoSpace if the system lacks the memory.
  virtual Result<void> resize(std::uint64_t bytes) = 0;
  // Allocates the pages of [offset, offset + length), and may allocate neighbouring pages: later writes cause no page
  // faults. kNoSpace. Several threads may call at the same time.
  virtual Result<void> populate(std::uint64_t offset, std::uint64_t length, PageSize pages = PageSize::kFastest) = 0;

 protected:
  GrowingMemory() = default;
  GrowingMemory(GrowingMemory&&) = default;
  GrowingMemory& operator=(GrowingMemory&&) = default;
};

}  // namespace cairn::os
