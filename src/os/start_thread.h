// Starts a thread with all signals blocked, or returns the reason of the failure.
#pragma once

#include <cairn/result.h>

#include <string>
#include <system_error>
#include <utility>

#include "os/signal_mask.h"

namespace cairn::os {

// `Thread` is std::thread or std::jthread. kUnavailable if no thread can be started; `purpose` completes "no thread".
template <typename Thread, typename Work>
Result<Thread> start_thread(const char* purpose, Work&& work) {
  const SignalMask no_signals;
  try {
    return Thread(std::forward<Work>(work));
  } catch (const std::system_error& error) {
    return Error(ErrorCode::kUnavailable, "no thread " + std::string(purpose) + ": " + error.what());
  }
}

}  // namespace cairn::os
