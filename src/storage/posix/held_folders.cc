#include "storage/posix/held_folders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "storage/posix/creation_mask.h"
#include "storage/posix/failed_call.h"

namespace cairn::storage {
namespace {

constexpr mode_t kPrivate = 0700;
constexpr mode_t kAllOfMode = 07777;

Error replaced(std::string_view name, const std::string& expected, const std::string& actual) {
  return Error(ErrorCode::kUnsafe,
               "another user replaced the private folder during a save: remove that user's write access to the "
               "checkpoint directory, then save again")
      .file(name)
      .expected(expected)
      .actual(actual);
}

std::string inode_in_words(const struct stat& status) {
  return "inode " + std::to_string(status.st_ino) + " of user " + std::to_string(status.st_uid);
}

// The owner of files that this process makes in the folder; nullopt if the process can't make a file in the folder.
std::optional<uid_t> owner_of_new_file(const os::Fd& folder) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const std::string name = "owner-" + std::to_string(getpid()) + "-" + std::to_string(now.tv_nsec);
  const os::Fd file(openat(folder.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  struct stat status {};
  const bool known = file && fstat(file.get(), &status) == 0;
  if (file) unlinkat(folder.get(), name.c_str(), 0);
  return known ? std::optional(status.st_uid) : std::nullopt;
}

}  // namespace

Result<void> HeldFolders::make(const std::string& name) {
  if (mkdirat(directory_->get(), name.c_str(), kPrivate) != 0) return failed("making a folder", name);
  return hold(name, true);
}

Result<void> HeldFolders::join(const std::string& name) {
  if (find(name)) return check(name);
  return hold(name, false);
}

Result<void> HeldFolders::hold(const std::string& name, bool is_new) {
  auto folder = std::make_shared<const os::Fd>(
      openat(directory_->get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const int error = errno;
  struct stat status {};
  const bool known = *folder ? fstat(folder->get(), &status) == 0
                             : fstatat(directory_->get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
  if (!known) return failed("opening a folder", name);
  if (!*folder && !S_ISDIR(status.st_mode)) {
    return Error(ErrorCode::kUnsafe, "not a folder, but a link or a file").file(name);
  }
  CAIRN_TRY(check_owner(*folder, name, status.st_uid, is_new));
  if (!*folder) {
    errno = error;
    return failed("opening a folder", name);
  }
  // On a file system without modes the fchmod changes nothing, and the mount options decide about write access.
  const bool is_open_to_others = (status.st_mode & kPermissionBits) != kPrivate;
  if (is_open_to_others) (void)!fchmod(folder->get(), kPrivate | (status.st_mode & kAllOfMode & ~kPermissionBits));
  const std::lock_guard lock(mutex_);
  held_.insert_or_assign(name, std::move(folder));
  return {};
}

Result<void> HeldFolders::check_owner(const os::Fd& folder, const std::string& name, uid_t owner, bool is_new) {
  std::optional<uid_t> known;
  {
    const std::lock_guard lock(mutex_);
    known = own_user_;
  }
  // Without the mutex: while the file system hangs, find() must not wait.
  if (!known && owner != geteuid() && folder) known = owner_of_new_file(folder);
  const uid_t own = known.value_or(geteuid());
  if (known || owner == own) {
    const std::lock_guard lock(mutex_);
    own_user_ = own;
  }
  if (owner == own) return {};
  const std::string expected = "user " + std::to_string(own), actual = "user " + std::to_string(owner);
  if (is_new) return replaced(name, expected, actual);
  return Error(ErrorCode::kUnsafe,
               "the private folder of a save belongs to another user: all ranks of a job must run as one user; if they "
               "do, another user made the folder: remove the folder and that user's write access")
      .file(name)
      .expected(expected)
      .actual(actual);
}

std::shared_ptr<const os::Fd> HeldFolders::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(name);
  return found == held_.end() ? nullptr : found->second;
}

Result<void> HeldFolders::check(const std::string& name) const {
  const auto held = find(name);
  if (!held) return {};
  struct stat mine {
  }, named{};
  if (fstat(held->get(), &mine) != 0) return failed("reading the attributes", name);
  if (fstatat(directory_->get(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) != 0)
    return failed("reading the attributes", name);
  if (mine.st_dev == named.st_dev && mine.st_ino == named.st_ino) return {};
  return replaced(name, inode_in_words(mine), inode_in_words(named));
}

Result<void> HeldFolders::check_opened(const std::string& name, int fd) const {
  const auto held = find(name);
  if (!held) return {};
  struct stat mine {
  }, opened{};
  if (fstat(held->get(), &mine) != 0 || fstat(fd, &opened) != 0) return failed("reading the attributes", name);
  if (mine.st_dev == opened.st_dev && mine.st_ino == opened.st_ino) return {};
  return replaced(name, inode_in_words(mine), inode_in_words(opened));
}

void HeldFolders::forget(const std::string& name) {
  const std::lock_guard lock(mutex_);
  held_.erase(name);
}

}  // namespace cairn::storage
