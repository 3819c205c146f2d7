#include "os/parent_signals.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>

#include "os/signal_action.h"

namespace cairn::os {
namespace {

std::array<struct sigaction, NSIG> actions_before;  // written before the handler is in place
std::atomic<pid_t> owner_of_process{0};

// Async-signal-safe.
void take_from_parent(int signal, siginfo_t* info, void* context) {
  if (info->si_code > 0) return;  // of the kernel: a terminal
  if (info->si_pid != getppid() && (owner_of_process == 0 || info->si_pid != owner_of_process)) return;
  const int error_number = errno;
  // The handler before may look for the sender too.
  const struct sigaction& before = actions_before[static_cast<std::size_t>(signal)];
  if (has_handler(before)) {
    call(before, signal, info, context);
  } else {
    take_back(signal, before);
  }
  errno = error_number;
}

}  // namespace

Result<void> take_only_from_parent(const std::vector<int>& signals, pid_t owner) {
  owner_of_process = owner;
  for (const int signal : signals) {
    struct sigaction before = {};
    if (signal < 1 || signal >= NSIG || sigaction(signal, nullptr, &before) != 0) return uncatchable(signal);
    if (is_handled_by(before, take_from_parent)) continue;
    actions_before[static_cast<std::size_t>(signal)] = before;
    CAIRN_TRY(handle_with(signal, take_from_parent));
  }
  return {};
}

}  // namespace cairn::os
