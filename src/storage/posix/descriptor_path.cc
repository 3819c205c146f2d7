#include "storage/posix/descriptor_path.h"

#include <string>
#include <system_error>

namespace cairn::storage {

std::filesystem::path descriptor_path(int fd) {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored);
}

}  // namespace cairn::storage
