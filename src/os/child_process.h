// ChildProcess: a program that this process started, and how it ended.
//
// One thread at a time, but for id() and kill(). After a fork the child must not touch it.
#pragma once

#include <cairn/result.h>
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "os/fd.h"

namespace cairn::os {

// How a process ended, as wait() reports it; nullopt inside if somebody else of this process asked first.
struct ProcessEnd {
  std::optional<int> status;

  bool was_clean() const;
  std::string in_words() const;  // "was killed by signal 9 (Killed)"
};

class ChildProcess {
 public:
  // Where the program finds the descriptor that it was given.
  static constexpr int kGivenDescriptor = 3;

  // Starts `executable`, in a session of its own, with `given` and nothing else of ours: its standard streams are
  // /dev/null, no signal is blocked or ignored. No code of this process runs in the child, so other threads and their
  // locks do not matter. The environment and the current directory are ours. kNotFound, kUnavailable.
  static Result<ChildProcess> start(const std::string& executable, const std::vector<std::string>& arguments,
                                    int given);

  ChildProcess(ChildProcess&& other) noexcept;
  // A process that still runs is left to itself.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t id() const noexcept { return id_; }
  // Waits that long for its end; nullopt if it still runs. Its process table entry is then gone.
  std::optional<ProcessEnd> wait_for(std::chrono::milliseconds time);
  void kill(int signal) const noexcept;

 private:
  explicit ChildProcess(pid_t id);
  std::optional<ProcessEnd> reap();

  pid_t id_;
  Fd process_;  // a descriptor of the process; empty where the kernel has none
  std::optional<ProcessEnd> end_;
};

}  // namespace cairn::os
