#include "storage/posix/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <utility>

#include "core/byte_units.h"
#include "core/checked.h"
#include "os/page_buffer.h"
#include "os/system_page.h"
#include "storage/posix/descriptor_path.h"
#include "storage/posix/failed_call.h"

namespace cairn::storage {
namespace {

// The most bytes per system call. Linux itself moves slightly less than 2 GiB per call.
constexpr std::size_t kRequestBytesMax = std::size_t{1} << 30;
// With write_back, the most bytes that may wait for the device: enough to keep the device busy, and few enough for a
// slow device to write in seconds.
constexpr std::uint64_t kWriteBackWindow = std::uint64_t{64} << 20;

bool is_lack_of_space(int error_number) { return error_number == ENOSPC || error_number == EDQUOT; }

// The error for a lack of space (errno): the bytes needed, and the bytes free in the file system. A quota may leave
// fewer.
Error no_space(std::string_view action, int fd, std::string_view name, std::uint64_t bytes_needed) {
  const int reason = errno;
  Error error = Error::from_errno(reason, std::string(action) + " failed").file(name);
  error = std::move(error).expected("room for " + std::to_string(bytes_needed) + " bytes");
  struct statvfs space {};
  if (fstatvfs(fd, &space) != 0) return error;
  const std::filesystem::path path = descriptor_path(fd);  // without /proc the error names only the file
  const std::string where = path.empty() ? "" : " of '" + path.parent_path().string() + "'";
  const std::string quota = reason == EDQUOT ? ", but the quota is used up" : "";
  const std::uint64_t bytes_free = std::uint64_t{space.f_bavail} * space.f_frsize;
  return std::move(error).actual(std::to_string(bytes_free) + " bytes free in the file system" + where + quota);
}

// Identifies a file, and changes when the file changes.
struct Identity {
  dev_t device;
  ino_t inode;
  off_t size;
  timespec modified;
  timespec changed;

  explicit Identity(const struct stat& status)
      : device(status.st_dev),
        inode(status.st_ino),
        size(status.st_size),
        modified(status.st_mtim),
        changed(status.st_ctim) {}

  bool operator==(const Identity& other) const {
    const auto same = [](const timespec& a, const timespec& b) {
      return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
    };
    return device == other.device && inode == other.inode && size == other.size && same(modified, other.modified) &&
           same(changed, other.changed);
  }

  std::string describe() const {
    const auto seconds = [](const timespec& time) {
      const std::string fraction = std::to_string(time.tv_nsec);
      return std::to_string(time.tv_sec) + "." + std::string(9 - std::min<std::size_t>(9, fraction.size()), '0') +
             fraction;
    };
    return "inode " + std::to_string(inode) + " of device " + std::to_string(device) + ", " + std::to_string(size) +
           " bytes, modified at " + seconds(modified) + ", changed at " + seconds(changed);
  }
};

Result<struct stat> status_of_regular(int fd, const std::string& name) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return failed("reading the attributes", name);
  if (S_ISREG(status.st_mode)) return status;
  return Error(ErrorCode::kUnsafe, "not a regular file")
      .file(name)
      .expected("a regular file")
      .actual(S_ISDIR(status.st_mode)    ? "a directory"
              : S_ISFIFO(status.st_mode) ? "a pipe"
                                         : "a device or socket");
}

// The alignment for direct I/O on the descriptor; nullopt if the file system has no direct I/O.
std::optional<ReadableFile::DirectAlignment> direct_alignment_of(int fd) {
  struct statx status {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0) return std::nullopt;
  if ((status.stx_mask & STATX_DIOALIGN) == 0) return ReadableFile::DirectAlignment{os::kPageBytes, os::kPageBytes};
  if (status.stx_dio_mem_align == 0 || status.stx_dio_offset_align == 0) return std::nullopt;
  return ReadableFile::DirectAlignment{status.stx_dio_mem_align, status.stx_dio_offset_align};
}

// False if the file system refuses direct I/O.
bool turn_to_direct(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
}

// Several threads may see the EINVAL at the same time; each clears O_DIRECT, and clearing the flag twice is harmless.
bool turn_to_page_cache(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(os::Fd fd, std::string name, bool direct, bool write_back)
      : fd_(std::move(fd)), name_(std::move(name)), direct_(direct), cached_(!direct), write_back_(write_back) {}

  std::size_t write_alignment() const override { return direct_ ? os::kPageBytes : 1; }

  Result<void> write_at(std::uint64_t offset, std::span<const std::byte> data) override {
    bool was_direct = direct_;
    while (!data.empty()) {
      const std::size_t request = std::min(data.size(), kRequestBytesMax);
      const ssize_t written = pwrite(fd_.get(), data.data(), request, static_cast<off_t>(offset));
      if (written < 0) {
        if (errno == EINTR) continue;
        if (is_lack_of_space(errno)) return no_space("writing", fd_.get(), name_, data.size()).offset(offset);
        if (errno != EINVAL || !std::exchange(was_direct, false)) return failed("writing", name_).offset(offset);
        CAIRN_TRY(leave_direct());
        continue;
      }
      if (written == 0) {
        return Error(ErrorCode::kUnavailable, "writing failed: the file system accepted no byte")
            .file(name_)
            .offset(offset);
      }
      if (write_back_ && cached_) CAIRN_TRY(write_back(offset, static_cast<std::uint64_t>(written)));
      data = data.subspan(static_cast<std::size_t>(written));
      offset += static_cast<std::uint64_t>(written);
      // After a short write the rest may be unaligned, and only the page cache takes unaligned writes.
      if (static_cast<std::size_t>(written) != request && written % static_cast<ssize_t>(os::kPageBytes) != 0) {
        CAIRN_TRY(leave_direct());
      }
    }
    return {};
  }

  Result<void> finish(std::uint64_t size, Durability durability) override {
    if (ftruncate(fd_.get(), static_cast<off_t>(size)) != 0) return failed("setting the file size", name_);
    if (durability == Durability::kDurable && fsync(fd_.get()) != 0) return failed("syncing", name_);
    if (auto closed = std::move(fd_).close(); !closed) return std::move(closed).error().file(name_);
    return {};
  }

 private:
  // Starts the write-back of the range, and waits for the range one window earlier. Callers write in roughly ascending
  // order.
  Result<void> write_back(std::uint64_t offset, std::uint64_t length) {
    const auto bytes = static_cast<off_t>(length);
    if (sync_file_range(fd_.get(), static_cast<off_t>(offset), bytes, SYNC_FILE_RANGE_WRITE) != 0) {
      if (errno != ENOSYS && errno != EPERM) return failed("starting to write back", name_).offset(offset);
      write_back_ = false;  // the sandbox has no sync_file_range; the fsync at the end writes everything
      return {};
    }
    if (offset < kWriteBackWindow) return {};
    offset -= kWriteBackWindow;
    constexpr unsigned kWait = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (sync_file_range(fd_.get(), static_cast<off_t>(offset), bytes, kWait) == 0) return {};
    // Every error is final: the kernel reports lost bytes once, and the later fsync would succeed without the bytes.
    return failed("writing back", name_).offset(offset);
  }

  // Some file systems accept O_DIRECT in open and refuse it in write.
  Result<void> leave_direct() {
    cached_ = true;
    if (!turn_to_page_cache(fd_.get())) return failed("switching from direct I/O to the page cache", name_);
    return {};
  }

  os::Fd fd_;
  std::string name_;
  bool direct_;  // as created; callers keep to the alignment
  std::atomic<bool> cached_;
  std::atomic<bool> write_back_;
};

// Two descriptors of one file; direct_ bypasses the page cache. Either may be closed while no thread reads through it.
class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(const std::shared_ptr<DescriptorCache>& descriptors, OpenForReading open, std::string name)
      : open_(std::move(open)),
        name_(std::move(name)),
        buffered_(descriptors, [this] { return reopen(0); }),
        direct_(descriptors, [this] { return reopen(O_DIRECT); }) {}

  // Opens the file for the first time and records its identity, before any second thread has the object.
  Result<void> open() {
    CAIRN_TRY_ASSIGN(const DescriptorCache::Pin pin, buffered_.pin());
    return {};
  }

  std::uint64_t size() const override { return static_cast<std::uint64_t>(identity_->size); }

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override {
    if (!holds(offset, target.size())) return short_file(offset, target.size());
    CAIRN_TRY_ASSIGN(const DescriptorCache::Pin pin, buffered_.pin());
    while (!target.empty()) {
      const std::size_t request = std::min(target.size(), kRequestBytesMax);
      const ssize_t got = pread(pin.fd(), target.data(), request, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return failed("reading", name_).offset(offset);
      if (got == 0) return short_file(offset, target.size());  // the file was cut during the read
      target = target.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
    return {};
  }

  std::optional<DirectAlignment> direct_alignment() const override {
    std::call_once(direct_once_, [this] {
      if (const auto pin = direct_.pin()) direct_alignment_ = direct_alignment_of(pin->fd());
    });
    return direct_alignment_;
  }

  Result<void> read_direct_at(std::uint64_t offset, std::span<std::byte> target) const override {
    if (offset >= size()) return short_file(offset, target.size());
    target = target.first(std::min<std::uint64_t>(target.size(), align_up(size() - offset, os::kPageBytes)));
    const std::uint64_t wanted = std::min<std::uint64_t>(target.size(), size() - offset);
    const std::uint64_t done = direct_alignment() ? read_past_cache(offset, target, wanted) : 0;
    // The page cache serves the bytes that the direct read left: a direct read may be refused, or may stop inside a
    // block.
    return done == wanted ? Result<void>() : read_at(offset + done, target.subspan(done, wanted - done));
  }

  bool is_cached(std::uint64_t offset, std::uint64_t length) const override {
    // The number and structures of cachestat(2), Linux 6.5; glibc has neither.
    constexpr long kCachestat = 451;
    struct {
      std::uint64_t offset, length;
    } const range{offset, length};
    struct {
      std::uint64_t cached, dirty, writeback, evicted, recently_evicted;
    } pages{};
    // If cachestat fails, report the range as cached: reading through the page cache is never much slower.
    const auto pin = buffered_.pin();
    if (!pin || syscall(kCachestat, pin->fd(), &range, &pages, 0) != 0) return true;
    return pages.cached * os::system_page_bytes() * 2 >= length;
  }

  // A refused advice costs only speed.
  void prefetch(std::uint64_t offset, std::uint64_t length) const override {
    const auto pin = buffered_.pin();
    const std::uint64_t end = offset + length;
    while (pin && offset < end) {
      // Steps end at page ends: each step then has at most as many pages as the kernel brings at one advice.
      const std::uint64_t next = std::min(align_down(offset + kPrefetchStepBytes, os::system_page_bytes()), end);
      (void)posix_fadvise(pin->fd(), static_cast<off_t>(offset), static_cast<off_t>(next - offset),
                          POSIX_FADV_WILLNEED);
      offset = next;
    }
  }
  void drop_cached(std::uint64_t offset, std::uint64_t length) const override {
    const auto pin = buffered_.pin();
    if (!pin) return;
    (void)posix_fadvise(pin->fd(), static_cast<off_t>(offset), static_cast<off_t>(length), POSIX_FADV_DONTNEED);
  }

 private:
  // At one advice the kernel brings at most the device's read-ahead window (usually 128 KiB), or the device's largest
  // request if the request is larger.
  static constexpr std::uint64_t kPrefetchStepBytes = 128 * kKiB;

  Error short_file(std::uint64_t offset, std::uint64_t length) const {
    return Error(ErrorCode::kCorrupt, "the file is too short")
        .file(name_)
        .offset(offset)
        .expected(std::to_string(length) + " bytes")
        .actual("a file of " + std::to_string(size()) + " bytes");
  }

  // The bytes filled by direct reads, of the first `wanted` bytes of `target`.
  std::uint64_t read_past_cache(std::uint64_t offset, std::span<std::byte> target, std::uint64_t wanted) const {
    const auto pin = direct_.pin();
    std::uint64_t done = 0;
    while (pin && done < wanted) {
      const std::size_t request = std::min(target.size() - done, kRequestBytesMax);
      const ssize_t got = pread(pin->fd(), target.data() + done, request, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      done = std::min(done + static_cast<std::uint64_t>(got), wanted);
      if (done % os::kPageBytes != 0) break;
    }
    return done;
  }

  Result<os::Fd> reopen(int more_flags) {
    CAIRN_TRY_ASSIGN(os::Fd fd, open_(more_flags));
    CAIRN_TRY_ASSIGN(const struct stat status, status_of_regular(fd.get(), name_));
    const Identity found(status);
    if (!identity_) identity_ = found;
    if (found != *identity_) {
      return Error(ErrorCode::kUnavailable, "the file was replaced or changed while it was being read")
          .file(name_)
          .expected(identity_->describe())
          .actual(found.describe());
    }
    const int flags = fcntl(fd.get(), F_GETFL);
    if (flags >= 0) fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK);
    return fd;
  }

  OpenForReading open_;
  std::string name_;
  std::optional<Identity> identity_;  // set by open()
  mutable DescriptorCache::Slot buffered_;
  mutable DescriptorCache::Slot direct_;
  mutable std::once_flag direct_once_;
  mutable std::optional<DirectAlignment> direct_alignment_;
};

}  // namespace

Result<std::unique_ptr<WritableFile>> create_posix_file(const NameInFolder& place, const std::string& name,
                                                        const Permissions& permissions, const CreateOptions& options) {
  const mode_t mode = permissions.mask.bits_for(permissions.bits);
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  os::Fd fd(openat(place.folder, place.name.c_str(), flags, mode));
  if (!fd) return failed("creating", name);
  permissions.mask.restore(fd.get(), permissions.bits);
  // O_DIRECT is set after the creation. After an open that refuses O_DIRECT, the name may belong to a file made by the
  // open, or to an older file: some kernels refuse the flag after the creation, and a file system may refuse the flag
  // before looking for the name.
  const bool direct = options.direct_io && direct_alignment_of(fd.get()) && turn_to_direct(fd.get());
  if (options.size != 0 && fallocate(fd.get(), 0, 0, static_cast<off_t>(options.size)) != 0) {
    // Some file systems can't reserve space, and their errors are ignored. ENOSPC, EDQUOT and EFBIG are reported.
    const int reason = errno;
    if (reason == EFBIG) return failed("reserving space", name).expected(std::to_string(options.size) + " bytes");
    if (is_lack_of_space(reason)) {
      // Some file systems keep a partial reservation: release the blocks, to count them as free.
      [[maybe_unused]] const int ignored = ftruncate(fd.get(), 0);
      errno = reason;
      return no_space("reserving space", fd.get(), name, options.size);
    }
  }
  return std::unique_ptr<WritableFile>(
      std::make_unique<PosixWritableFile>(std::move(fd), name, direct, options.write_back));
}

Result<std::unique_ptr<ReadableFile>> open_posix_file(const std::shared_ptr<DescriptorCache>& descriptors,
                                                      OpenForReading open, const std::string& name) {
  auto file = std::make_unique<PosixReadableFile>(descriptors, std::move(open), name);
  CAIRN_TRY(file->open());
  return std::unique_ptr<ReadableFile>(std::move(file));
}

}  // namespace cairn::storage
