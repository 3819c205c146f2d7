#include "os/priority.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace cairn::os {

void set_priority(const Priority& priority) noexcept {
  if (priority.nice != 0) (void)!nice(priority.nice);
  if (priority.io_class == IoClass::kUnchanged) return;
  constexpr int kThisThread = 1;  // IOPRIO_WHO_PROCESS
  constexpr int kClassShift = 13;
  (void)syscall(SYS_ioprio_set, kThisThread, 0, static_cast<int>(priority.io_class) << kClassShift | priority.io_level);
}

}  // namespace cairn::os
