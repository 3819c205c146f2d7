#include "os/fd.h"

#include <unistd.h>

#include <cerrno>

namespace cairn::os {

Result<void> Fd::close() && {
  const int fd = std::exchange(fd_, -1);
  // Linux frees the descriptor even if close() is interrupted: never call close() again.
  if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) return Error::from_errno(errno, "close failed");
  return {};
}

void Fd::reset() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

}  // namespace cairn::os
