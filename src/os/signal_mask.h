// SignalMask: blocks all signals in the calling thread, and in the threads started while the object lives.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace cairn::os {

// A thread inherits the signal mask of its creator. The threads of a library must not receive the program's signals: a
// Ctrl-C must reach a thread of the program.
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
