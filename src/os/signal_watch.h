// SignalWatch: tells a function of the first arrival of a signal, and leaves the second arrival to the action before.
//
// The handler is the system's own: a signal is seen at once, also while the main thread of an interpreter is in a long
// call. Steps:
//
// 1. The first arrival: the handler notes the signal, wakes the watch's thread, and calls the handler that was in place
//    before, if there was a handler. The thread calls the function. The default action, to end the process, is not
//    taken.
// 2. A second arrival, at least two seconds after the first: the handler puts the action before back in place and
//    raises the signal again. An earlier arrival is ignored: a launcher and a scheduler may both send the signal to a
//    process.
// 3. In a child made by fork, each arrival is taken as in step 2, at once. A signal such as SIGUSR1 is ignored there if
//    the default action would end the child: a scheduler sends it to all processes of a job, also to the workers of a
//    data loader, and asks for no process to end. SIGTERM and SIGINT do.
#pragma once

#include <cairn/result.h>

#include <functional>
#include <memory>
#include <vector>

namespace cairn::os {

class SignalWatch {
 public:
  // Called with the number of the signal, in a thread of the watch.
  using Seen = std::function<void(int signal)>;

  // kInvalidArgument for a signal that can't be caught. kUnavailable without a thread. Several watches of a signal all
  // see its first arrival. `uncalled`: of `signals`, those whose handler before counts as the default action in step 1:
  // Python's handler of SIGINT raises an exception. The first watch of a signal decides.
  static Result<std::unique_ptr<SignalWatch>> start(const std::vector<int>& signals, Seen seen,
                                                    const std::vector<int>& uncalled = {});
  // The last watch of a signal puts the action before back in place, where the handler still is.
  ~SignalWatch();

  class Impl;
  explicit SignalWatch(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::os
