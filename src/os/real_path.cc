#include "os/real_path.h"

#include <cairn/bucket_url.h>

#include <filesystem>
#include <system_error>

#include "os/call_within.h"

namespace cairn::os {

namespace fs = std::filesystem;

std::string real_path(const std::string& path, std::chrono::milliseconds limit) {
  if (is_bucket_url(path)) return path;
  const fs::path absolute = absolute_place(path);
  const auto follow = [absolute] {
    std::error_code refused;
    const fs::path real = fs::weakly_canonical(absolute, refused);
    return refused ? absolute.string() : real.string();
  };
  return call_within(limit, follow).value_or(absolute.string());
}

}  // namespace cairn::os
