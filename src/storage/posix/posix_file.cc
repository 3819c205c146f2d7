#include "storage/posix/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "core/checked.h"
#include "os/page_buffer.h"

namespace cairn::storage {
namespace {

// One system call moves at most this much; Linux itself stops a little above.
constexpr std::size_t kRequestBytesMax = std::size_t{1} << 30;

Error failed(std::string_view action, std::string_view name) {
  return Error::from_errno(errno, std::string(action) + " failed").file(name);
}

// What direct I/O asks of this descriptor; nullopt where the file system does not do it.
std::optional<ReadableFile::DirectAlignment> direct_alignment_of(int fd) {
  struct statx status {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0) return std::nullopt;
  if ((status.stx_mask & STATX_DIOALIGN) == 0) return ReadableFile::DirectAlignment{os::kPageBytes, os::kPageBytes};
  if (status.stx_dio_mem_align == 0 || status.stx_dio_offset_align == 0) return std::nullopt;
  return ReadableFile::DirectAlignment{status.stx_dio_mem_align, status.stx_dio_offset_align};
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(os::Fd fd, std::string name, bool direct)
      : fd_(std::move(fd)), name_(std::move(name)), direct_(direct) {}

  std::size_t write_alignment() const override { return direct_ ? os::kPageBytes : 1; }

  Result<void> write_at(std::uint64_t offset, std::span<const std::byte> data) override {
    while (!data.empty()) {
      const std::size_t request = std::min(data.size(), kRequestBytesMax);
      const ssize_t written = pwrite(fd_.get(), data.data(), request, static_cast<off_t>(offset));
      if (written < 0) {
        if (errno == EINTR) continue;
        if (errno == EINVAL && leave_direct()) continue;
        return failed("writing", name_).offset(offset);
      }
      data = data.subspan(static_cast<std::size_t>(written));
      offset += static_cast<std::uint64_t>(written);
      // After a short write the rest may be unaligned: only the page cache takes it.
      if (static_cast<std::size_t>(written) != request && written % static_cast<ssize_t>(os::kPageBytes) != 0) {
        leave_direct();
      }
    }
    return {};
  }

  Result<void> finish(std::uint64_t size, Durability durability) override {
    if (ftruncate(fd_.get(), static_cast<off_t>(size)) != 0) return failed("cutting to size", name_);
    if (durability == Durability::kDurable && fsync(fd_.get()) != 0) return failed("syncing", name_);
    if (auto closed = std::move(fd_).close(); !closed) return std::move(closed).error().file(name_);
    return {};
  }

 private:
  // Some file systems accept O_DIRECT at open and refuse it at the write. True if there was something to leave.
  bool leave_direct() {
    const std::lock_guard lock(mutex_);
    const int flags = fcntl(fd_.get(), F_GETFL);
    if (flags < 0 || (flags & O_DIRECT) == 0) return false;
    return fcntl(fd_.get(), F_SETFL, flags & ~O_DIRECT) == 0;
  }

  os::Fd fd_;
  std::string name_;
  bool direct_;  // as created: the alignment that callers keep to
  std::mutex mutex_;
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(os::Fd fd, std::string name, std::uint64_t size)
      : fd_(std::move(fd)), name_(std::move(name)), size_(size) {}

  std::uint64_t size() const override { return size_; }

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override {
    if (!holds(offset, target.size())) return short_file(offset, target.size());
    while (!target.empty()) {
      const std::size_t request = std::min(target.size(), kRequestBytesMax);
      const ssize_t got = pread(fd_.get(), target.data(), request, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return failed("reading", name_).offset(offset);
      if (got == 0) return short_file(offset, target.size());  // it was cut while we read
      target = target.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
    return {};
  }

  std::optional<DirectAlignment> direct_alignment() const override {
    std::call_once(direct_once_, [this] { open_direct(); });
    return direct_alignment_;
  }

  Result<void> read_direct_at(std::uint64_t offset, std::span<std::byte> target) const override {
    if (offset >= size_) return short_file(offset, target.size());
    target = target.first(std::min<std::uint64_t>(target.size(), align_up(size_ - offset, os::kPageBytes)));
    std::uint64_t wanted = std::min<std::uint64_t>(target.size(), size_ - offset);
    while (direct_alignment() && wanted != 0) {
      const ssize_t got =
          pread(direct_fd_.get(), target.data(), std::min(target.size(), kRequestBytesMax), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      const std::uint64_t step = std::min<std::uint64_t>(static_cast<std::uint64_t>(got), wanted);
      target = target.subspan(step);
      offset += step;
      wanted -= step;
      if (step % os::kPageBytes != 0) break;
    }
    // What a direct read could not do (it was refused, or stopped off a block) goes through the page cache.
    return wanted == 0 ? Result<void>() : read_at(offset, target.first(wanted));
  }

  bool is_cached(std::uint64_t offset, std::uint64_t length) const override {
    // The numbers of cachestat(2), Linux 6.5; glibc has neither call nor structures.
    constexpr long kCachestat = 451;
    struct {
      std::uint64_t offset, length;
    } const range{offset, length};
    struct {
      std::uint64_t cached, dirty, writeback, evicted, recently_evicted;
    } pages{};
    // Where it can't be asked, the page cache is the way that is never much slower.
    if (syscall(kCachestat, fd_.get(), &range, &pages, 0) != 0) return true;
    return pages.cached * os::kPageBytes * 2 >= length;
  }

 private:
  Error short_file(std::uint64_t offset, std::uint64_t length) const {
    return Error(ErrorCode::kCorrupt, "the file is shorter than what should be in it")
        .file(name_)
        .offset(offset)
        .expected(std::to_string(length) + " bytes")
        .actual("a file of " + std::to_string(size_) + " bytes");
  }

  // A second descriptor for the same file: through /proc, so that nobody can put another file in its place.
  void open_direct() const {
    const std::string self = "/proc/self/fd/" + std::to_string(fd_.get());
    os::Fd fd(::open(self.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    if (!fd) return;
    direct_alignment_ = direct_alignment_of(fd.get());
    if (direct_alignment_) direct_fd_ = std::move(fd);
  }

  os::Fd fd_;
  std::string name_;
  std::uint64_t size_;
  mutable std::once_flag direct_once_;
  mutable os::Fd direct_fd_;
  mutable std::optional<DirectAlignment> direct_alignment_;
};

}  // namespace

Result<std::unique_ptr<WritableFile>> create_posix_file(int directory, const std::string& name, mode_t mode,
                                                        const CreateOptions& options) {
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  bool direct = options.direct_io;
  os::Fd fd;
  if (direct) fd = os::Fd(openat(directory, name.c_str(), flags | O_DIRECT, mode));
  if (direct && !fd && errno == EINVAL) {
    direct = false;
    unlinkat(directory, name.c_str(), 0);  // some kernels leave the file behind when they refuse the flag
  }
  if (!direct) fd = os::Fd(openat(directory, name.c_str(), flags, mode));
  if (!fd) return failed("creating", name);
  if (direct && !direct_alignment_of(fd.get())) {
    if (fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_DIRECT) != 0) return failed("creating", name);
    direct = false;
  }
  if (options.size != 0 && fallocate(fd.get(), 0, 0, static_cast<off_t>(options.size)) != 0) {
    // Not every file system can reserve; only a lack of space is an answer.
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
      return failed("reserving space", name).expected(std::to_string(options.size) + " bytes");
    }
  }
  return std::unique_ptr<WritableFile>(std::make_unique<PosixWritableFile>(std::move(fd), name, direct));
}

Result<std::unique_ptr<ReadableFile>> adopt_posix_file(os::Fd fd, const std::string& name) {
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) return failed("looking at", name);
  if (!S_ISREG(status.st_mode)) {
    return Error(ErrorCode::kUnsafe, "not a regular file")
        .file(name)
        .expected("a regular file")
        .actual(S_ISDIR(status.st_mode)    ? "a directory"
                : S_ISFIFO(status.st_mode) ? "a pipe"
                                           : "a device or socket");
  }
  const int flags = fcntl(fd.get(), F_GETFL);
  if (flags >= 0) fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  return std::unique_ptr<ReadableFile>(std::make_unique<PosixReadableFile>(std::move(fd), name, size));
}

}  // namespace cairn::storage
