#include "os/priority.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "os/fd.h"

namespace cairn::os {

void set_priority(const Priority& priority) noexcept {
  if (priority.nice > 0) {
    constexpr int kNiceMax = 19;
    const auto process = static_cast<id_t>(getpid());
    const int nice = std::min(getpriority(PRIO_PROCESS, process) + priority.nice, kNiceMax);
    if (getpriority(PRIO_PROCESS, 0) < nice) (void)setpriority(PRIO_PROCESS, 0, nice);
    const sched_param no_parameters{};
    // A policy other than SCHED_OTHER is a choice of the user, and SCHED_IDLE has an even lower priority.
    if (sched_getscheduler(0) == SCHED_OTHER) (void)sched_setscheduler(0, SCHED_BATCH, &no_parameters);
  }
  if (priority.io_class == IoClass::kUnchanged) return;
  constexpr int kThisThread = 1;  // IOPRIO_WHO_PROCESS
  constexpr int kClassShift = 13;
  (void)syscall(SYS_ioprio_set, kThisThread, 0, static_cast<int>(priority.io_class) << kClassShift | priority.io_level);
}

void SessionNiceness::set(int nice) noexcept {
  if (nice_ == nice) return;
  const Fd group(open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC));
  char text[8];
  const int length = std::snprintf(text, sizeof text, "%d", nice);
  if (!group || write(group.get(), text, static_cast<std::size_t>(length)) == length || errno != EAGAIN) nice_ = nice;
}

}  // namespace cairn::os
