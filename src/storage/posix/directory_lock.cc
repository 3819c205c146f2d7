// 1. Open the lock file for writing; make it if it is missing.
// 2. Lock it with flock(2), without blocking, again and again.
// 3. Look whether the file was retired before it was locked: it is not empty, it has no name any more, or its name has
//    been given to another file. If so, begin again with step 1.
// 4. Release: if the lock is still held, remove the name and make the file one byte long. Unlock it.
//
// "Still held": a file server gives the locks of a client that it does not hear to others, who remove the name and make
// a new file. So the question of step 3 is asked again: the name of another holder's file must stay.
//
// Only the holder removes the name, so two processes that hold a lock would hold it on one file: step 3 sends every
// other one back to step 1.
//
// Why a regular file that is open for writing: an NFS client asks the server for such a lock only. A lock on a
// directory stays on the client, and excludes no process of another client.
//
// Why the length: after a lock is granted, an NFS client reads the attributes of the file anew, but a name may still
// come from its cache. A removed file also keeps a name on the server for as long as its remover has it open
// (`.nfs...`). The length tells the truth in both cases. The name goes first: if the holder is killed in between, a
// file that is still empty has no name, and the next process makes a new one. In the other order a retired file would
// keep the name, and no process could ever lock.
//
// Why flock and not fcntl(F_OFD_SETLK): both belong to the open file, so that threads of one process exclude each other
// and closing another descriptor of the file releases nothing; both reach the server of NFS. flock is known to more
// kernels, sandboxes and FUSE file systems. A mixture of the two would exclude nothing on a local file system. A child
// that is forked meanwhile shares the open file, so the lock is released by LOCK_UN and not by closing alone.
#include "storage/posix/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace cairn::storage {
namespace {

using Clock = std::chrono::steady_clock;

constexpr mode_t kLockMode = 0666;  // less the umask
constexpr std::chrono::milliseconds kRetryMin{2};
constexpr std::chrono::milliseconds kRetryMax{250};  // each attempt is a question to the server
constexpr std::chrono::milliseconds kProgressInterval{1000};

const std::string& lock_name() {
  static const std::string name(kLockName);
  return name;
}

Error failed(std::string_view action) {
  return Error::from_errno(errno, std::string(action) + " failed").file(lock_name());
}

struct OpenedLockFile {
  os::Fd fd;
  bool made = false;  // by this process
};

// Step 1.
Result<OpenedLockFile> open_lock_file(int directory) {
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  constexpr int kTriesMax = 1000;  // others make and remove the file all the time
  for (int tries = 0; tries < kTriesMax; ++tries) {
    OpenedLockFile file{os::Fd(openat(directory, lock_name().c_str(), kFlags)), false};
    if (!file.fd && errno == ENOENT) {
      file = {os::Fd(openat(directory, lock_name().c_str(), kFlags | O_CREAT | O_EXCL, kLockMode)), true};
    }
    if (!file.fd && (errno == EEXIST || errno == ENOENT || errno == ESTALE)) continue;
    if (!file.fd) {
      return failed("opening the lock file")
          .while_doing("locking the directory; if no save is under way in it, remove the lock file");
    }
    struct stat status {};
    if (fstat(file.fd.get(), &status) != 0 && errno == ESTALE) continue;
    if (S_ISREG(status.st_mode)) return file;
    return Error(ErrorCode::kUnsafe, "the name of the lock file belongs to something else: remove it")
        .file(lock_name())
        .expected("a regular file");
  }
  return Error(ErrorCode::kUnavailable, "the lock file is made and removed again and again").file(lock_name());
}

// Step 3. The attributes of the locked file come from the server, even where the client believes that it knows them.
bool is_retired(int directory, const os::Fd& fd) {
  struct statx locked {};
  constexpr int kFlags = AT_EMPTY_PATH | AT_STATX_FORCE_SYNC;
  constexpr unsigned kAsked = STATX_INO | STATX_NLINK | STATX_SIZE;
  if (statx(fd.get(), "", kFlags, kAsked, &locked) != 0 || locked.stx_nlink == 0 || locked.stx_size != 0) return true;
  struct statx named {};
  if (statx(directory, lock_name().c_str(), AT_SYMLINK_NOFOLLOW, STATX_INO, &named) != 0) return true;
  return locked.stx_ino != named.stx_ino || locked.stx_dev_major != named.stx_dev_major ||
         locked.stx_dev_minor != named.stx_dev_minor;
}

// Whether those who hold the lock get on: a rename, a removal, and the making of a file change the directory's time,
// and so does each new holder, who makes a lock file of its own.
class Progress {
 public:
  Progress(int directory, std::chrono::milliseconds patience) : directory_(directory), patience_(patience) {}

  bool has_stopped() {
    const Clock::time_point now = Clock::now();
    if (now >= next_look_) {
      next_look_ = now + std::min(kProgressInterval, patience_);
      struct statx seen {};
      const int flags = AT_EMPTY_PATH | AT_STATX_FORCE_SYNC;
      const bool known = statx(directory_, "", flags, STATX_MTIME, &seen) == 0;
      const bool changed = known && (seen.stx_mtime.tv_sec != seconds_ || seen.stx_mtime.tv_nsec != nanoseconds_);
      if (changed) last_change_ = now;
      seconds_ = seen.stx_mtime.tv_sec;
      nanoseconds_ = seen.stx_mtime.tv_nsec;
    }
    return now - last_change_ > patience_;
  }

 private:
  int directory_;
  std::chrono::milliseconds patience_;
  Clock::time_point last_change_ = Clock::now();
  Clock::time_point next_look_{};
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
      const bool nameless = unlinkat(directory_->get(), lock_name().c_str(), 0) == 0 || errno == ENOENT;
      if (nameless) (void)!ftruncate(fd_.get(), 1);
    }
    flock(fd_.get(), LOCK_UN);
  }

  bool is_held() const override { return !is_retired(directory_->get(), fd_); }

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
      default: return failed("locking");
    }
  }
  return Attempt::kLocked;
}

// After `last`, the last of many attempts.
Error never_locked(Attempt last) {
  if (last == Attempt::kBusy) {
    return Error(ErrorCode::kUnavailable, "the directory is locked by another save, and nothing changes in it")
        .file(lock_name())
        .while_doing(
            "locking the directory; the lock is held by another process, or by a save of this process that was given "
            "up, until its storage answers or the process ends: end that process, and leave the lock file in place");
  }
  return Error(ErrorCode::kUnavailable, "the lock file in place is one that its last holder has retired")
      .file(lock_name())
      .while_doing("locking the directory; if no save is under way in it, remove the lock file");
}

}  // namespace

Result<std::unique_ptr<StorageLock>> lock_directory(std::shared_ptr<const os::Fd> directory,
                                                    std::chrono::milliseconds patience) {
  Progress progress(directory->get(), patience);
  std::optional<OpenedLockFile> file;
  for (std::chrono::milliseconds pause = kRetryMin;; pause = std::min(pause * 2, kRetryMax)) {
    if (!file) {  // (1)
      CAIRN_TRY_ASSIGN(file, open_lock_file(directory->get()));
    }
    CAIRN_TRY_ASSIGN(const Attempt attempt, try_to_lock(file->fd));  // (2)
    if (attempt == Attempt::kNoLocks) {
      if (file->made) unlinkat(directory->get(), lock_name().c_str(), 0);
      return std::unique_ptr<StorageLock>();
    }
    if (attempt == Attempt::kLocked && !is_retired(directory->get(), file->fd)) {  // (3)
      return std::unique_ptr<StorageLock>(std::make_unique<DirectoryLock>(std::move(directory), std::move(file->fd)));
    }
    if (attempt != Attempt::kBusy) file.reset();
    if (progress.has_stopped()) return never_locked(attempt);
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace cairn::storage
