// Three ways to move a file to a free name, the best first. If the file system or a filter of system calls refuses a
// call as unknown, the next way is tried.
//
// 1. Call renameat2 with RENAME_NOREPLACE.
// 2. Make a hard link; linkat never replaces a file. Then remove the old name. If the removal fails, the call still
//    succeeds, because the file has its new name. The owner of the folder removes the old name later.
// 3. Create an empty file under the new name with O_EXCL, then rename the file over the empty file. Cairn made the
//    empty file, and no process replaces or removes names of another process: the rename replaces only our own empty
//    file. A kill between creation and rename leaves an empty file that no metadata names.
//
// A network file system may lose the answer to a call and send the call again. The repeated call finds the new name
// taken or the old name gone, because the first call succeeded. After a failure, unless_done() therefore looks at the
// file under the new name.
#include "storage/posix/exclusive_rename.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>

#include "os/fd.h"
#include "storage/posix/failed_call.h"

namespace cairn::storage {
namespace {

// Some file systems refuse links with EPERM, and some filters refuse unknown calls with EPERM.
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
    if (inode_of(to_) != file_) return failed("publishing", to_.name, error);
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
  if (!file) return failed("publishing", from.name);
  return ExclusiveRename(from, to, *file).run();
}

}  // namespace cairn::storage
