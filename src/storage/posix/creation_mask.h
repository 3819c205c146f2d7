// CreationMask: the permissions of new files and folders, by the umask of the saving process.
//
// A writer process creates files for a trainer. The trainer's umask may have changed since the writer was started. A
// thread of the trainer may also create files after the trainer has changed its umask. The umask belongs to the whole
// process, and concurrent saves create files in the process: CreationMask never changes the umask. Cairn creates a file
// with the bits that both umasks allow, and adds the missing bits afterwards. Immutable.
#pragma once

#include <sys/types.h>

#include <optional>

namespace cairn::storage {

// The bits of a mode that say who may read, write and execute.
inline constexpr mode_t kPermissionBits = 0777;

class CreationMask {
 public:
  // Uses the umask of the current process at the time of the creation.
  CreationMask() = default;
  // Uses `umask` for files in and below the open `directory`. If the directory has a default ACL, the ACL replaces
  // `umask`, as in open(2).
  CreationMask(std::optional<mode_t> umask, int directory);

  // `bits` for open(2) and mkdir(2), minus the mask.
  mode_t bits_for(mode_t bits) const { return umask_ ? bits & ~*umask_ : bits; }
  // Adds the bits removed by the umask of the current process to the new file or folder open as `fd`. File systems
  // without permissions refuse the change; restore ignores the refusal.
  void restore(int fd, mode_t bits) const;

 private:
  std::optional<mode_t> umask_;
};

}  // namespace cairn::storage
