#include "standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace cairn::cli {

bool open_standard_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (::fcntl(stream, F_GETFD) != -1) continue;
    // The lowest free number is `stream`.
    if (::open("/dev/null", stream == STDIN_FILENO ? O_RDONLY : O_WRONLY) != stream) return false;
  }
  return true;
}

}  // namespace cairn::cli
