// CPU and disk priority of threads. A new thread inherits the priority of its creator: set the priority before starting
// threads.
#pragma once

#include <cstdint>

namespace cairn::os {

// The classes of ioprio_set(2).
enum class IoClass : std::uint8_t { kUnchanged = 0, kRealTime = 1, kBestEffort = 2, kIdle = 3 };

struct Priority {
  // Added to the niceness of the process's first thread: 1 to 19 lowers the CPU priority. A thread with the policy
  // SCHED_OTHER also gets SCHED_BATCH: on waking, a SCHED_BATCH thread does not preempt a computing thread.
  int nice = 0;
  IoClass io_class = IoClass::kUnchanged;
  std::uint8_t io_level = 4;  // 0 (first) to 7, within the class

  friend bool operator==(const Priority&, const Priority&) = default;
};

// Sets the priority of the calling thread and of threads that it starts later. If the system refuses a part, the part
// stays as it is. Repeated calls change nothing more. Never lowers the niceness of a thread.
void set_priority(const Priority& priority) noexcept;

// The niceness of a process that leads its own session. If the kernel schedules by session ("autogroup"), the niceness
// of a thread counts only within its session. One thread at a time.
class SessionNiceness {
 public:
  // Sets the niceness, 0 to 19. The kernel accepts at most ten changes per second from an unprivileged process, and
  // set() ignores a refusal: callers repeat the call.
  void set(int nice) noexcept;

 private:
  int nice_ = 0;  // as accepted by the kernel
};

}  // namespace cairn::os
