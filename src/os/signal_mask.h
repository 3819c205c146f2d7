// SignalMask: keeps signals away from threads that are started while it lives.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace cairn::os {

// A thread inherits the mask of the one that starts it. A library's threads must not be handed the program's signals: a
// Ctrl-C is for the program's own.
class SignalMask {
 public:
  SignalMask() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalMask() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalMask(const SignalMask&) = delete;
  SignalMask& operator=(const SignalMask&) = delete;

 private:
  sigset_t before_;
};

}  // namespace cairn::os
