// Signals that only the parent process may send: for a worker process whose parent handles the end of the job.
#pragma once

#include <cairn/result.h>

#include <sys/types.h>

#include <vector>

namespace cairn::os {

// From now on a signal takes the action of before if the parent, or the process `owner` unless that is 0, has sent the
// signal, and is ignored otherwise. For the whole process, and for good. kInvalidArgument for a signal that can't be
// caught.
Result<void> take_only_from_parent(const std::vector<int>& signals, pid_t owner = 0);

}  // namespace cairn::os
