#include "os/umask.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include "os/fd.h"

namespace cairn::os {
namespace {

constexpr mode_t kPrivate = 077;
constexpr mode_t kUmaskMax = 0777;

}  // namespace

mode_t current_umask() noexcept {
  constexpr std::string_view kField = "\nUmask:\t";
  std::array<char, 512> text{};  // "Umask" is the second field
  const Fd status(open("/proc/thread-self/status", O_RDONLY | O_CLOEXEC));
  const ssize_t bytes = status ? read(status.get(), text.data(), text.size() - 1) : 0;
  const std::string_view shown(text.data(), bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  const std::size_t field = shown.find(kField);
  if (field != std::string_view::npos) {
    return static_cast<mode_t>(std::strtoul(text.data() + field + kField.size(), nullptr, 8)) & kUmaskMax;
  }
  const mode_t found = umask(kPrivate);
  umask(found);
  return found;
}

}  // namespace cairn::os
