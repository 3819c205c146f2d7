// 1. Open the lock file for writing; make the file if it is missing.
// 2. Lock the file with flock(2), without blocking, and repeat until flock succeeds.
// 3. Check whether a holder retired the file before the lock was granted. A file is retired if it is not empty, has no
//    name, or lost its name to a different file. If the file is retired, begin again with step 1.
// 4. Release: if the lock is still held, remove the name and make the file one byte long. Then unlock the file.
//
// "Still held": a file server may give the locks of an unreachable client to a second client. The second client then
// removes the name and makes a new file. Step 4 therefore repeats the check of step 3: the first client must not remove
// the name of the second client's file.
//
// Only the holder removes the name. Two processes can therefore hold the lock only on one and the same file; step 3
// sends the process with a retired file back to step 1.
//
// Why a regular file open for writing: an NFS client asks the server only for the locks of such files. A lock on a
// directory stays on the client and excludes no process of a second client.
//
// Why the length: when a lock is granted, an NFS client rereads the attributes of the file, but a name may still come
// from the client's cache. On the server, a removed file also keeps a name (`.nfs...`) while its remover has the file
// open. The length is right in both cases. Step 4 removes the name before setting the length: if the holder is killed
// in between, an empty file without a name remains, and the next process makes a new file. In the reverse order a
// retired file would keep the name, and no process could ever lock the directory.
//
// Why flock and not fcntl(F_OFD_SETLK): both locks belong to the open file. Threads of one process therefore exclude
// each other, and closing a second descriptor of the file releases nothing. Both locks reach an NFS server. More
// kernels, sandboxes and FUSE file systems support flock. On a local file system the two kinds of lock do not exclude
// each other: Cairn uses only flock. A child forked while the lock is held shares the open file: the release calls
// LOCK_UN, because closing alone would not unlock. If the holder is killed, such a child keeps the lock until the child
// ends (docs/durability.md).
#include "storage/posix/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "storage/posix/failed_call.h"

namespace cairn::storage {
namespace {

using Clock = std::chrono::steady_clock;

constexpr mode_t kLockMode = 0666;  // minus the umask
constexpr std::chrono::milliseconds kRetryMin{2};
constexpr std::chrono::milliseconds kRetryMax{250};  // each attempt is a request to the server
constexpr std::chrono::milliseconds kProgressInterval{1000};
constexpr int kHolderPatience = 20;  // a holder renames and removes at most the files of two checkpoints

constexpr const char* kLockFile = kLockName.data();  // ends with a zero byte

constexpr std::string_view kReadingAttributes = "reading the attributes of the lock file";

// For statx(2) on a lock file (errno): whether the file, or its name, is gone.
bool is_gone() { return errno == ENOENT || errno == ESTALE; }

// Whether the open directory has been removed: no file can be made in it any more.
bool is_removed(int directory) {
  struct stat status {};
  return fstat(directory, &status) != 0 ? is_gone() : status.st_nlink == 0;
}

struct OpenedLockFile {
  os::Fd fd;
  bool made = false;  // by this process
};

// Step 1.
Result<OpenedLockFile> open_lock_file(int directory) {
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  constexpr int kTriesMax = 1000;  // concurrent processes may make and remove the file repeatedly
  for (int tries = 0; tries < kTriesMax; ++tries) {
    OpenedLockFile file{os::Fd(openat(directory, kLockFile, kFlags)), false};
    if (!file.fd && errno == ENOENT) {
      file = {os::Fd(openat(directory, kLockFile, kFlags | O_CREAT | O_EXCL, kLockMode)), true};
    }
    if (!file.fd && (errno == EEXIST || errno == ENOENT || errno == ESTALE)) {
      if (errno != EEXIST && is_removed(directory)) return Error(ErrorCode::kNotFound, "the directory was removed");
      continue;
    }
    if (!file.fd) {
      return failed("opening the lock file", kLockFile)
          .while_doing("locking the directory; if no save into the directory is in flight, remove the lock file");
    }
    struct stat status {};
    const bool known = fstat(file.fd.get(), &status) == 0;
    if (!known && errno == ESTALE) continue;
    if (!known) return failed(kReadingAttributes, kLockFile);
    if (S_ISREG(status.st_mode)) return file;
    return Error(ErrorCode::kUnsafe, "the lock file is not a regular file: remove it")
        .file(kLockFile)
        .expected("a regular file");
  }
  return Error(ErrorCode::kUnavailable, "the lock file is made and removed again and again").file(kLockFile);
}

// Step 3. The forced sync fetches the attributes of the locked file from the server, past the client's cache.
Result<bool> is_retired(int directory, const os::Fd& fd) {
  struct statx locked {};
  constexpr int kFlags = AT_EMPTY_PATH | AT_STATX_FORCE_SYNC;
  constexpr unsigned kAsked = STATX_INO | STATX_NLINK | STATX_SIZE;
  if (statx(fd.get(), "", kFlags, kAsked, &locked) != 0) {
    return is_gone() ? Result<bool>(true) : Result<bool>(failed(kReadingAttributes, kLockFile));
  }
  if (locked.stx_nlink == 0 || locked.stx_size != 0) return true;
  struct statx named {};
  if (statx(directory, kLockFile, AT_SYMLINK_NOFOLLOW, STATX_INO, &named) != 0) {
    return is_gone() ? Result<bool>(true) : Result<bool>(failed(kReadingAttributes, kLockFile));
  }
  return locked.stx_ino != named.stx_ino || locked.stx_dev_major != named.stx_dev_major ||
         locked.stx_dev_minor != named.stx_dev_minor;
}

// Whether the holders of the lock make progress. A rename, a removal and a creation change the directory's time; each
// new holder changes the time by making a lock file. Processes that do not hold the lock change the directory's time
// too, so a single holder has kHolderPatience times the patience and no more.
class Progress {
 public:
  Progress(int directory, std::chrono::milliseconds patience) : directory_(directory), patience_(patience) {}

  // After each opening of the lock file. A file that was not noted last belongs to a new holder; a retired file that
  // keeps its name does not.
  void note_lock_file(const os::Fd& fd) {
    struct stat status {};
    if (fstat(fd.get(), &status) != 0) return;
    const std::tuple file(status.st_dev, status.st_ino, status.st_ctim.tv_sec, status.st_ctim.tv_nsec);
    if (file != lock_file_) holder_since_ = Clock::now();
    lock_file_ = file;
  }

  bool has_stopped() {
    const Clock::time_point now = Clock::now();
    if (now >= next_look_) {
      next_look_ = now + std::min(kProgressInterval, patience_);
      struct statx seen {};
      const int flags = AT_EMPTY_PATH | AT_STATX_FORCE_SYNC;
      const bool known = statx(directory_, "", flags, STATX_MTIME, &seen) == 0;
      if (known && (seen.stx_mtime.tv_sec != seconds_ || seen.stx_mtime.tv_nsec != nanoseconds_)) {
        last_change_ = now;
        seconds_ = seen.stx_mtime.tv_sec;
        nanoseconds_ = seen.stx_mtime.tv_nsec;
      }
    }
    return now - last_change_ > patience_ || now - holder_since_ > kHolderPatience * patience_;
  }

 private:
  int directory_;
  std::chrono::milliseconds patience_;
  Clock::time_point last_change_ = Clock::now();
  Clock::time_point holder_since_ = Clock::now();
  Clock::time_point next_look_{};
  std::tuple<dev_t, ino_t, std::time_t, long> lock_file_{};
  std::int64_t seconds_ = 0;
  std::uint32_t nanoseconds_ = 0;
};

class DirectoryLock final : public StorageLock {
 public:
  DirectoryLock(std::shared_ptr<const os::Fd> directory, os::Fd fd)
      : directory_(std::move(directory)), fd_(std::move(fd)) {}
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  // Step 4.
  ~DirectoryLock() override {
    if (is_held()) {
      const bool nameless = unlinkat(directory_->get(), kLockFile, 0) == 0 || errno == ENOENT;
      if (nameless) (void)!ftruncate(fd_.get(), 1);
    }
    flock(fd_.get(), LOCK_UN);
  }

  bool is_held() const override {
    const Result<bool> retired = is_retired(directory_->get(), fd_);
    return retired && !*retired;
  }

 private:
  std::shared_ptr<const os::Fd> directory_;
  os::Fd fd_;
};

enum class Attempt : std::uint8_t { kLocked, kBusy, kGone, kNoLocks };

// One attempt of step 2.
Result<Attempt> try_to_lock(const os::Fd& fd) {
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    switch (errno) {
      case EINTR: continue;
      case EWOULDBLOCK: return Attempt::kBusy;
      case ESTALE: return Attempt::kGone;
      case EACCES:
      case EINVAL:
      case ENOLCK:
      case ENOSYS:
      case EOPNOTSUPP:
      case EPERM: return Attempt::kNoLocks;
      default: return failed("locking", kLockFile);
    }
  }
  return Attempt::kLocked;
}

// After `last`, the last of many attempts.
Error never_locked(Attempt last) {
  if (last == Attempt::kBusy) {
    return Error(ErrorCode::kUnavailable, "the directory is locked by another save that makes no progress")
        .file(kLockFile)
        .while_doing(
            "locking the directory; the lock is held by another process, or by a save of this process that was given "
            "up, until its storage answers or the process ends: end that process, and leave the lock file in place");
  }
  return Error(ErrorCode::kUnavailable, "the lock file is left over from a finished save")
      .file(kLockFile)
      .while_doing("locking the directory; if no save into the directory is in flight, remove the lock file");
}

}  // namespace

Result<std::unique_ptr<StorageLock>> lock_directory(std::shared_ptr<const os::Fd> directory,
                                                    std::chrono::milliseconds patience, const os::StopFlag* stop) {
  Progress progress(directory->get(), patience);
  std::optional<OpenedLockFile> file;
  for (std::chrono::milliseconds pause = kRetryMin;; pause = std::min(pause * 2, kRetryMax)) {
    if (!file) {  // (1)
      CAIRN_TRY_ASSIGN(file, open_lock_file(directory->get()));
      progress.note_lock_file(file->fd);
    }
    CAIRN_TRY_ASSIGN(const Attempt attempt, try_to_lock(file->fd));  // (2)
    if (attempt == Attempt::kNoLocks) {
      if (file->made) unlinkat(directory->get(), kLockFile, 0);
      return std::unique_ptr<StorageLock>();
    }
    const Result<bool> retired = attempt == Attempt::kLocked ? is_retired(directory->get(), file->fd) : true;  // (3)
    if (retired && !*retired) {
      return std::unique_ptr<StorageLock>(std::make_unique<DirectoryLock>(std::move(directory), std::move(file->fd)));
    }
    if (attempt != Attempt::kBusy) {
      flock(file->fd.get(), LOCK_UN);  // a child that was forked meanwhile shares the lock
      file.reset();
    } else if (stop != nullptr && stop->is_set()) {
      return Error(ErrorCode::kCancelled, "interrupted while waiting for the lock of the directory").file(kLockFile);
    }
    if (progress.has_stopped()) return retired ? never_locked(attempt) : retired.error();
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace cairn::storage
