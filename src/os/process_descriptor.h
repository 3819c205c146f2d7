// Process descriptors: readable once the process has ended. A descriptor never refers to a later process with a reused
// id.
#pragma once

#include <sys/types.h>

#include "os/fd.h"

namespace cairn::os {

// Empty if the process does not exist, or if the kernel (before Linux 5.3) or a sandbox lacks process descriptors.
Fd open_process(pid_t id) noexcept;
// As kill(2), for the process of the descriptor.
bool signal_process(const Fd& process, int signal) noexcept;

}  // namespace cairn::os
