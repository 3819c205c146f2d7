#include "os/process_descriptor.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace cairn::os {
namespace {

// Equal on every architecture; missing in the headers of older systems.
constexpr long kPidfdSendSignal = 424;
constexpr long kPidfdOpen = 434;

}  // namespace

Fd open_process(pid_t id) noexcept { return Fd(static_cast<int>(syscall(kPidfdOpen, id, 0))); }

bool signal_process(const Fd& process, int signal) noexcept {
  return process && syscall(kPidfdSendSignal, process.get(), signal, nullptr, 0) == 0;
}

}  // namespace cairn::os
