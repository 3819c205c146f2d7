// Three ways to a name that must be free, the best first. A call that the file system or a filter of system calls does
// not know leads to the next one.
//
// 1. renameat2 with RENAME_NOREPLACE.
// 2. A hard link, which never replaces either. The old name goes then; if it can't be removed, it is left to whoever
//    owns the folder that it is in: the file has its name, so nothing has failed.
// 3. The name is taken with an empty file, and the file renamed over that one. The empty file was created exclusively,
//    so it is ours, and nobody else replaces or removes a name that is not his: what the rename replaces is ours. A
//    kill in between leaves an empty file that no metadata names.
//
// Over a network an answer may be lost and the call made again: that one then finds the name taken, or the old name
// gone, because the first one did its work. So after a failure the file under the name is looked at before it is
// believed.
#include "storage/posix/exclusive_rename.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>

#include "os/fd.h"

namespace cairn::storage {
namespace {

// EPERM is what some file systems say of links, and some filters of any call that they do not know.
bool means_not_here(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == ENOTSUP || error == EPERM;
}

struct Inode {
  dev_t device;
  ino_t number;
  bool operator==(const Inode&) const = default;
};

std::optional<Inode> inode_of(const NameInFolder& file) {
  struct stat status {};
  if (fstatat(file.folder, file.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  return Inode{status.st_dev, status.st_ino};
}

Error failed(int error, const std::string& name) { return Error::from_errno(error, "publishing failed").file(name); }

class ExclusiveRename {
 public:
  ExclusiveRename(const NameInFolder& from, const NameInFolder& to, const Inode& file)
      : from_(from), to_(to), file_(file) {}

  Result<void> run() {
    if (renameat2(from_.folder, from_.name.c_str(), to_.folder, to_.name.c_str(), RENAME_NOREPLACE) == 0)
      return {};  // (1)
    if (!means_not_here(errno)) return unless_done(errno);
    if (linkat(from_.folder, from_.name.c_str(), to_.folder, to_.name.c_str(), 0) == 0) {  // (2)
      unlinkat(from_.folder, from_.name.c_str(), 0);
      return {};
    }
    if (!means_not_here(errno)) return unless_done(errno);
    return rename_over_placeholder();  // (3)
  }

 private:
  Result<void> rename_over_placeholder() {
    const os::Fd placeholder(
        openat(to_.folder, to_.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!placeholder) return unless_done(errno);
    if (renameat(from_.folder, from_.name.c_str(), to_.folder, to_.name.c_str()) == 0) return {};
    const int error = errno;
    struct stat status {};
    const bool known = fstat(placeholder.get(), &status) == 0;
    if (known && inode_of(to_) == Inode{status.st_dev, status.st_ino}) unlinkat(to_.folder, to_.name.c_str(), 0);
    return unless_done(error);
  }

  Result<void> unless_done(int error) {
    if (inode_of(to_) != file_) return failed(error, to_.name);
    if (inode_of(from_) == file_) unlinkat(from_.folder, from_.name.c_str(), 0);
    return {};
  }

  const NameInFolder& from_;
  const NameInFolder& to_;
  Inode file_;
};

}  // namespace

Result<void> rename_exclusively(const NameInFolder& from, const NameInFolder& to) {
  const std::optional<Inode> file = inode_of(from);
  if (!file) return failed(errno, from.name);
  return ExclusiveRename(from, to, *file).run();
}

}  // namespace cairn::storage
