// How much of the processor and the disk this process takes, beside others. For threads started later: a thread has the
// priority of the one that starts it.
#pragma once

#include <cstdint>

namespace cairn::os {

// The classes of ioprio_set(2).
enum class IoClass : std::uint8_t { kUnchanged = 0, kRealTime = 1, kBestEffort = 2, kIdle = 3 };

struct Priority {
  // Is added to what the process's first thread has: 1 to 19 is less of the processor. A thread of the ordinary policy
  // then has SCHED_BATCH: waking up, it does not interrupt who computes.
  int nice = 0;
  IoClass io_class = IoClass::kUnchanged;
  std::uint8_t io_level = 4;  // within its class, 0 (first) to 7

  friend bool operator==(const Priority&, const Priority&) = default;
};

// Of this thread, and those that it starts. A wish: what the system refuses is left as it is. Said again, it changes
// nothing more; a thread that stands back further stays there.
void set_priority(const Priority& priority) noexcept;

// Of a process that is a session of its own: where the kernel shares the processor out among sessions ("autogroup"),
// the niceness of threads counts only within one. One thread at a time.
class SessionNiceness {
 public:
  // 0 to 19. A wish, and one that the kernel hears from most processes only once in a tenth of a second: to be said
  // again.
  void set(int nice) noexcept;

 private:
  int nice_ = 0;  // as the kernel has it
};

}  // namespace cairn::os
