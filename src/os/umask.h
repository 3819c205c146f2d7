// The umask of this process.
#pragma once

#include <sys/types.h>

namespace cairn::os {

// Read without changing it where the system shows it (/proc/thread-self/status of Linux 4.7 and later). Elsewhere it is
// set to 077 for a moment: a file that another thread creates in that moment is private.
mode_t current_umask() noexcept;

}  // namespace cairn::os
