#include "os/parent_signals.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <string>

namespace cairn::os {
namespace {

std::array<struct sigaction, NSIG> actions_before;  // written before the handler is in place
std::atomic<pid_t> owner_of_process{0};

// Async-signal-safe.
void take_from_parent(int signal, siginfo_t* info, void* /*context*/) {
  if (info->si_code > 0) return;  // of the kernel: a terminal
  if (info->si_pid != getppid() && (owner_of_process == 0 || info->si_pid != owner_of_process)) return;
  const int error_number = errno;
  // The handler before may look for the sender too.
  const struct sigaction& before = actions_before[static_cast<std::size_t>(signal)];
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, nullptr);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    sigaction(signal, &before, nullptr);
    raise(signal);  // arrives when the handler has returned
  }
  errno = error_number;
}

bool is_in_place(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == take_from_parent;
}

}  // namespace

Result<void> take_only_from_parent(const std::vector<int>& signals, pid_t owner) {
  owner_of_process = owner;
  for (const int signal : signals) {
    const Error refused(ErrorCode::kInvalidArgument, "signal " + std::to_string(signal) + " can't be caught");
    struct sigaction before = {};
    if (signal < 1 || signal >= NSIG || sigaction(signal, nullptr, &before) != 0) return refused;
    if (is_in_place(before)) continue;
    actions_before[static_cast<std::size_t>(signal)] = before;
    struct sigaction action = {};
    action.sa_sigaction = take_from_parent;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (sigaction(signal, &action, nullptr) != 0) return refused;
  }
  return {};
}

}  // namespace cairn::os
