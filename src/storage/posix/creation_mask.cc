#include "storage/posix/creation_mask.h"

#include <sys/stat.h>
#include <sys/xattr.h>

namespace cairn::storage {
namespace {

bool has_default_acl(int directory) { return fgetxattr(directory, "system.posix_acl_default", nullptr, 0) > 0; }

}  // namespace

CreationMask::CreationMask(std::optional<mode_t> umask, int directory) {
  if (umask && !has_default_acl(directory)) umask_ = *umask & kPermissionBits;
}

void CreationMask::restore(int fd, mode_t bits) const {
  struct stat status {};
  if (!umask_ || fstat(fd, &status) != 0) return;
  const mode_t missing = bits_for(bits) & ~status.st_mode;
  if (missing != 0) (void)fchmod(fd, (status.st_mode & ~static_cast<mode_t>(S_IFMT)) | missing);
}

}  // namespace cairn::storage
