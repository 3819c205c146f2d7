#include "os/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "core/checked.h"
#include "os/page_buffer.h"
#include "os/system_page.h"

namespace cairn::os {
namespace {

// Missing in the headers of older systems; a kernel without the advice returns EINVAL.
constexpr int kPopulateForWriting = 23;  // MADV_POPULATE_WRITE, Linux 5.14
// The bytes per fallocate, the size of a huge page. On older kernels a signal ends the call, and the kernel frees the
// pages allocated by the call. Small calls make progress even in a program with frequent signals (a profiler).
constexpr std::uint64_t kAllocationBytes = std::uint64_t{2} << 20;

Error memory_error(int error_number, const char* doing, std::uint64_t bytes) {
  const int code = error_number == ENOMEM ? ENOSPC : error_number;
  return Error::from_errno(code, std::string(doing) + ": " + std::strerror(error_number))
      .expected(std::to_string(bytes) + " bytes of shared memory");
}

}  // namespace

Result<MemoryFile> MemoryFile::create(const char* name) {
  Fd fd(memfd_create(name, MFD_CLOEXEC));
  if (!fd) return Error::from_errno(errno, "can't make shared memory");
  return MemoryFile(std::move(fd));
}

Result<MemoryFile> MemoryFile::adopt(Fd fd) {
  struct stat status;
  if (fstat(fd.get(), &status) != 0) return Error::from_errno(errno, "reading the size of shared memory failed");
  // Only memory files have seals.
  if (!S_ISREG(status.st_mode) || fcntl(fd.get(), F_GET_SEALS) < 0) {
    return Error(ErrorCode::kInvalidArgument, "the descriptor is not shared memory");
  }
  MemoryFile memory(std::move(fd));
  CAIRN_TRY(memory.remap());
  return memory;
}

MemoryFile::MemoryFile(MemoryFile&& other) noexcept
    : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}

MemoryFile& MemoryFile::operator=(MemoryFile&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::move(other.fd_);
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

MemoryFile::~MemoryFile() { close(); }

// Freeing the pages of a large file takes long, and ForkClosedFd blocks forks during the close. The mapping therefore
// outlives the descriptor: the munmap frees the pages.
void MemoryFile::close() noexcept {
  const bool is_mine = is_of_this_process();
  fd_.reset();
  if (is_mine) unmap();
}

// In a child made by fork the address range may hold an unrelated mapping.
bool MemoryFile::is_of_this_process() const noexcept { return fd_ != nullptr && fd_->get() >= 0; }

void MemoryFile::unmap() noexcept {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
}

Result<void> MemoryFile::map(std::uint64_t bytes) {
  if (is_of_this_process()) unmap();
  if (bytes == 0) return {};
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_->get(), 0);
  if (memory == MAP_FAILED) return memory_error(errno, "can't map shared memory", bytes);
  bytes_ = {static_cast<std::byte*>(memory), bytes};
  (void)madvise(memory, bytes, MADV_DONTFORK);
  return {};
}

std::uint64_t MemoryFile::present_bytes() const noexcept {
  constexpr std::uint64_t kBlockBytes = 512;
  struct stat status;
  return fstat(fd_->get(), &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * kBlockBytes : 0;
}

Result<void> MemoryFile::resize(std::uint64_t bytes) {
  const std::uint64_t whole = align_up(bytes, kPageBytes);
  if (whole == bytes_.size()) return {};
  if (ftruncate(fd_->get(), static_cast<off_t>(whole)) != 0) {
    return memory_error(errno, "can't resize shared memory", whole);
  }
  return map(whole);
}

Result<void> MemoryFile::remap() {
  struct stat status;
  if (fstat(fd_->get(), &status) != 0) return Error::from_errno(errno, "reading the size of shared memory failed");
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  if (bytes == bytes_.size()) return {};
  return map(bytes);
}

Result<void> MemoryFile::populate(std::uint64_t offset, std::uint64_t length, PageSize /*pages*/) {
  const std::uint64_t page = system_page_bytes();
  const std::uint64_t begin = align_down(offset, page);
  const std::uint64_t end = std::min<std::uint64_t>(align_up(offset + length, page), bytes_.size());
  if (begin >= end) return {};
  // If no pages are left, fallocate fails. Without fallocate, touching the pages would kill the process.
  for (std::uint64_t done = begin; done < end;) {
    const std::uint64_t piece = std::min(end - done, kAllocationBytes - done % kAllocationBytes);
    const int failed = fallocate(fd_->get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(done), static_cast<off_t>(piece));
    if (failed != 0 && errno == EINTR) continue;
    if (failed != 0 && errno == EOPNOTSUPP) break;
    if (failed != 0) return memory_error(errno, "allocating shared memory failed", end - done);
    done += piece;
  }
  (void)madvise(bytes_.data() + begin, end - begin, kPopulateForWriting);  // only saves page faults
  return {};
}

}  // namespace cairn::os
