#include "os/private_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include "core/checked.h"
#include "os/page_buffer.h"
#include "os/system_page.h"

namespace cairn::os {
namespace {

// Missing in the headers of older systems; a kernel without the advice returns EINVAL.
constexpr int kAllocateForWriting = 23;  // MADV_POPULATE_WRITE, Linux 5.14

// The longest processor time for a huge page: 2 GiB a second, and a fifth of the usual rate.
constexpr std::chrono::milliseconds kQuickPartMax{1};
// With so many slow huge pages, memory that is not present yet gets small pages.
constexpr unsigned kSlowPartsMax = 2;

// Of this thread: a time without the waits for a processor.
std::chrono::nanoseconds processor_time() noexcept {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

Error no_private_memory(int error_number, const char* doing, std::uint64_t bytes) {
  const int code = error_number == ENOMEM ? ENOSPC : error_number;
  return Error::from_errno(code, std::string(doing) + ": " + std::strerror(error_number))
      .expected(std::to_string(bytes) + " bytes of memory");
}

std::size_t part_count(std::uint64_t bytes) {
  return static_cast<std::size_t>((bytes + kHugePageBytes - 1) / kHugePageBytes);
}

// An unused range of addresses of `bytes`, aligned to huge pages. MAP_FAILED with errno.
void* reserve_addresses(std::uint64_t bytes) {
  bytes = align_up(bytes, system_page_bytes());
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const memory = mmap(nullptr, bytes + kHugePageBytes, PROT_NONE, kFlags, -1, 0);
  if (memory == MAP_FAILED) return memory;
  auto* const begin = static_cast<std::byte*>(memory);
  const std::uint64_t head =
      align_up(reinterpret_cast<std::uintptr_t>(begin), kHugePageBytes) - reinterpret_cast<std::uintptr_t>(begin);
  if (head != 0) munmap(begin, head);
  munmap(begin + head + bytes, kHugePageBytes - head);
  return begin + head;
}

}  // namespace

PrivateMemory::PrivateMemory() : process_id_(getpid()) {}

PrivateMemory::~PrivateMemory() { unmap(); }

void PrivateMemory::unmap() noexcept {
  // In a child made by fork the address range may hold an unrelated mapping.
  if (!bytes_.empty() && getpid() == process_id_) munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
  present_ = std::vector<std::atomic<bool>>();
  present_bytes_ = 0;
}

std::uint64_t PrivateMemory::part_bytes(std::size_t part) const noexcept {
  return std::min<std::uint64_t>(kHugePageBytes, bytes_.size() - part * kHugePageBytes);
}

Result<void> PrivateMemory::resize(std::uint64_t bytes) {
  const std::uint64_t whole = align_up(bytes, kPageBytes);
  if (whole == 0) unmap();
  if (whole < bytes_.size()) shrink(whole);
  return whole > bytes_.size() ? grow(whole) : Result<void>();
}

void PrivateMemory::shrink(std::uint64_t bytes) noexcept {
  // munmap refuses an address inside a page of the system, and frees the whole of the last page.
  const std::uint64_t kept = align_up(bytes, system_page_bytes());
  if (kept < bytes_.size()) munmap(bytes_.data() + kept, bytes_.size() - kept);
  std::uint64_t present = 0;
  bytes_ = bytes_.first(bytes);
  for (std::size_t part = 0; part < part_count(bytes); ++part) present += present_[part] ? part_bytes(part) : 0;
  present_bytes_ = present;
}

Result<void> PrivateMemory::grow(std::uint64_t bytes) {
  void* const place = reserve_addresses(bytes);
  if (place == MAP_FAILED) return no_private_memory(errno, "can't reserve addresses", bytes);
  std::vector<std::atomic<bool>> parts(part_count(bytes));
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  // Moves the present pages. A move between addresses that are aligned alike keeps huge pages whole.
  void* const memory = bytes_.empty()
                           ? mmap(place, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0)
                           : mremap(bytes_.data(), bytes_.size(), bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place);
  if (memory == MAP_FAILED) {
    const int reason = errno;
    munmap(place, bytes);
    return no_private_memory(reason, "can't map memory", bytes);
  }
  // The end of the old memory may lie inside a part: the part is present again after the next populate().
  std::uint64_t present = 0;
  for (std::size_t part = 0; part < bytes_.size() / kHugePageBytes; ++part) {
    parts[part] = present_[part].load();
    present += parts[part] ? kHugePageBytes : 0;
  }
  present_ = std::move(parts);
  present_bytes_ = present;
  bytes_ = {static_cast<std::byte*>(memory), bytes};
  slow_parts_ = 0;
  // Hints: with a refusal the memory has small pages, or a child has a copy.
  (void)madvise(memory, bytes, MADV_HUGEPAGE);
  (void)madvise(memory, bytes, MADV_DONTFORK);
  return {};
}

Result<void> PrivateMemory::populate(std::uint64_t offset, std::uint64_t length, PageSize pages) {
  const std::uint64_t end = std::min<std::uint64_t>(offset + length, bytes_.size());
  for (std::uint64_t at = align_down(offset, kHugePageBytes); at < end; at += kHugePageBytes) {
    const std::size_t part = at / kHugePageBytes;
    if (!present_[part].load(std::memory_order_acquire)) CAIRN_TRY(populate_part(part, pages));
  }
  return {};
}

Result<void> PrivateMemory::populate_part(std::size_t part, PageSize pages) {
  const std::uint64_t bytes = part_bytes(part);
  const std::chrono::nanoseconds begin = processor_time();
  while (madvise(bytes_.data() + part * kHugePageBytes, bytes, kAllocateForWriting) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL) break;  // an older kernel allocates at the first write
    return no_private_memory(errno, "allocating memory failed", bytes);
  }
  const bool is_slow = bytes == kHugePageBytes && processor_time() - begin > kQuickPartMax;
  if (is_slow && pages == PageSize::kFastest) note_slow_part();
  if (!present_[part].exchange(true)) present_bytes_ += bytes;
  return {};
}

void PrivateMemory::note_slow_part() noexcept {
  if (slow_parts_.fetch_add(1) + 1 == kSlowPartsMax) (void)madvise(bytes_.data(), bytes_.size(), MADV_NOHUGEPAGE);
}

}  // namespace cairn::os
