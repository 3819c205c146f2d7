// ChildProcess: a program started by this process, and the end of the program.
//
// One thread at a time, except id(). After a fork the child must not use the object.
#pragma once

#include <cairn/result.h>
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "os/fd.h"

namespace cairn::os {

// How a process ended, as wait() reports it. `status` is nullopt if a wait() elsewhere in this process took the status.
struct ProcessEnd {
  std::optional<int> status;

  bool was_clean() const;
  std::string in_words() const;  // "was killed by signal 9 (Killed)"
};

class ChildProcess {
 public:
  // The number of the given descriptor in the new program.
  static constexpr int kGivenDescriptor = 3;

  // Starts `executable` in a new session. The program inherits only the descriptor `given`, the environment and the
  // current directory. Its standard streams are /dev/null, and all signals are unblocked and have their default
  // actions. No code of this process runs in the child: locks held by other threads do not matter. kNotFound,
  // kUnavailable.
  static Result<ChildProcess> start(const std::string& executable, const std::vector<std::string>& arguments,
                                    int given);

  ChildProcess(ChildProcess&& other) noexcept;
  // Does not end a running process.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t id() const noexcept { return id_; }
  // Waits up to `time` for the end of the process; nullopt if the process still runs. After the end, the entry in the
  // process table is gone.
  std::optional<ProcessEnd> wait_for(std::chrono::milliseconds time);
  void kill(int signal) const noexcept;

 private:
  explicit ChildProcess(pid_t id);
  std::optional<ProcessEnd> reap();

  pid_t id_;
  Fd process_;  // a process descriptor; empty if the kernel has none
  std::optional<ProcessEnd> end_;
};

}  // namespace cairn::os
