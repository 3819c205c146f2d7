#include "os/priority.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "os/fd.h"

namespace cairn::os {

void set_priority(const Priority& priority) noexcept {
  if (priority.nice > 0) {
    (void)!nice(priority.nice);
    const sched_param no_parameters{};
    // Another policy than the ordinary one is somebody's choice; SCHED_IDLE is even less.
    if (sched_getscheduler(0) == SCHED_OTHER) (void)sched_setscheduler(0, SCHED_BATCH, &no_parameters);
  }
  if (priority.io_class == IoClass::kUnchanged) return;
  constexpr int kThisThread = 1;  // IOPRIO_WHO_PROCESS
  constexpr int kClassShift = 13;
  (void)syscall(SYS_ioprio_set, kThisThread, 0, static_cast<int>(priority.io_class) << kClassShift | priority.io_level);
}

void set_session_priority(const Priority& priority) noexcept {
  set_priority(priority);
  if (priority.nice <= 0) return;
  const Fd group(open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC));
  const std::string text = std::to_string(priority.nice);
  if (group) (void)!write(group.get(), text.data(), text.size());
}

}  // namespace cairn::os
