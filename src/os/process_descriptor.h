// Descriptors of processes: readable once the process has ended; they never mean a later process with the same id.
#pragma once

#include <sys/types.h>

#include "os/fd.h"

namespace cairn::os {

// Empty if there is no such process, or if the kernel (before Linux 5.3) or a sandbox has none.
Fd open_process(pid_t id) noexcept;
// As kill(2) for the process behind `process`.
bool signal_process(const Fd& process, int signal) noexcept;

}  // namespace cairn::os
