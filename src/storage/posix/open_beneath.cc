#include "storage/posix/open_beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "os/fd.h"

namespace cairn::storage {
namespace {

// Opens the parts of the name one by one, and refuses links.
int open_by_parts(int directory, const std::string& name, int flags) {
  os::Fd folder;
  std::size_t begin = 0;
  for (std::size_t end = name.find('/'); end != std::string::npos; end = name.find('/', begin)) {
    const std::string part = name.substr(begin, end - begin);
    begin = end + 1;
    if (part.empty()) continue;
    const int parent = folder ? folder.get() : directory;
    os::Fd next(openat(parent, part.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next) {
      struct stat status {};
      const bool link = errno == ENOTDIR && fstatat(parent, part.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                        S_ISLNK(status.st_mode);
      if (link) errno = ELOOP;
      return -1;
    }
    folder = std::move(next);
  }
  return openat(folder ? folder.get() : directory, name.c_str() + begin, flags | O_NOFOLLOW);
}

}  // namespace

int open_beneath(int directory, const std::string& name, int flags) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  const long fd = syscall(SYS_openat2, directory, name.c_str(), &how, sizeof how);
  // Linux before 5.6 has no openat2, and container filters may refuse unknown calls.
  const bool unknown = fd < 0 && (errno == ENOSYS || errno == EPERM);
  return unknown ? open_by_parts(directory, name, flags) : static_cast<int>(fd);
}

}  // namespace cairn::storage
