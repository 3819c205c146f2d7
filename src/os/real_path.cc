#include "os/real_path.h"

#include <filesystem>
#include <system_error>

#include "os/call_within.h"

namespace cairn::os {

namespace fs = std::filesystem;

std::string real_path(const std::string& path, std::chrono::milliseconds limit) {
  std::error_code error;
  fs::path absolute = fs::absolute(path, error);
  if (error) absolute = path;
  const auto follow = [absolute] {
    std::error_code refused;
    const fs::path real = fs::weakly_canonical(absolute, refused);
    return refused ? absolute.string() : real.string();
  };
  return call_within(limit, follow).value_or(absolute.string());
}

}  // namespace cairn::os
