// The actions of signals, for code that puts a handler in place of the action before.
#pragma once

#include <cairn/result.h>
#include <signal.h>

#include <string>

namespace cairn::os {

using SignalHandler = void (*)(int signal, siginfo_t* info, void* context);

// The functions of an action are async-signal-safe.
inline bool is_default(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

inline bool has_handler(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

inline bool is_handled_by(const struct sigaction& action, SignalHandler handler) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == handler;
}

// Of an action that has_handler().
inline void call(const struct sigaction& action, int signal, siginfo_t* info, void* context) {
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(signal, info, context);
  } else {
    action.sa_handler(signal);
  }
}

// Within a handler of the signal: puts the action before back in place, which then takes the signal.
inline void take_back(int signal, const struct sigaction& before) {
  sigaction(signal, &before, nullptr);
  raise(signal);  // arrives when the handler has returned
}

inline Error uncatchable(int signal) {
  return {ErrorCode::kInvalidArgument, "signal " + std::to_string(signal) + " can't be caught"};
}

// kInvalidArgument for a signal that can't be caught.
inline Result<void> handle_with(int signal, SignalHandler handler) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  return sigaction(signal, &action, nullptr) == 0 ? Result<void>() : uncatchable(signal);
}

}  // namespace cairn::os
