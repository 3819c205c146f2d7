// The umask of this process.
#pragma once

#include <sys/types.h>

namespace cairn::os {

// Reads the umask from /proc/thread-self/status (Linux 4.7 and later) without changing the umask. Without the file,
// sets the umask to 077 for a moment: a file created by a concurrent thread in the moment is private.
mode_t current_umask() noexcept;

}  // namespace cairn::os
