// CreationMask: the permissions of new files and folders, by the umask of the process that asked for them.
//
// A writer process creates files for a trainer whose umask may have changed since the writer was started, and a thread
// of the trainer may create them after the trainer has changed its umask. A umask belongs to a whole process, in which
// other saves create files meanwhile; so it is not changed. Files are created with the bits that both umasks leave, and
// then get the others. Immutable.
#pragma once

#include <sys/types.h>

#include <optional>

namespace cairn::storage {

class CreationMask {
 public:
  // The umask of this process at the time of the creation.
  CreationMask() = default;
  // `umask`, in the open directory and below it; but the default ACL of the directory if it has one, as for open(2).
  CreationMask(std::optional<mode_t> umask, int directory);

  // `bits` for open(2) and mkdir(2).
  mode_t bits_for(mode_t bits) const { return umask_ ? bits & ~*umask_ : bits; }
  // After them: gives what was created, open as `fd`, the bits that the umask of this process has taken. A file system
  // without permissions refuses that, and nothing comes of it.
  void restore(int fd, mode_t bits) const;

 private:
  std::optional<mode_t> umask_;
};

}  // namespace cairn::storage
