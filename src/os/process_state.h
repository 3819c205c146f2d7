// ProcessState<T>: one object for all threads of the process, and for the children that the process forks.
//
// A child made by fork has a copy of every lock, and lacks the threads that would release it. Hence:
//
// 1. The object is made while the library is loaded. No other thread takes a lock of libc for it: such a lock guards
//    the initialisation of a static object, and another lock guards the list of exit handlers.
// 2. A fork waits until no thread uses the object. The child inherits a whole object and a free mutex.
// 3. The object is never destroyed: threads may use it until the process ends.
//
// A definition at namespace scope makes the object: `ProcessState<Names>& names = ProcessState<Names>::instance();`.
// T is the name of the object: a process has one ProcessState<T> of each T. If T has a function in_child(), a child
// made by fork calls it before the fork returns.
#pragma once

#include <pthread.h>

#include <mutex>
#include <utility>

namespace cairn::os {

template <typename T>
class ProcessState {
 public:
  ProcessState(const ProcessState&) = delete;
  ProcessState& operator=(const ProcessState&) = delete;

  static ProcessState& instance() {
    static ProcessState& made = *new ProcessState;
    return made;
  }

  // Calls `work(object)` while no other thread uses the object, and returns its result. Any thread may call this. A
  // fork waits for `work`: it must be quick, must not fork, and must use no second ProcessState.
  template <typename Work>
  decltype(auto) use(Work&& work) {
    const std::lock_guard lock(mutex_);
    return std::forward<Work>(work)(object_);
  }

 private:
  // (2)
  ProcessState() {
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().unlock_in_child(); });
  }
  ~ProcessState() = default;

  void unlock_in_child() {
    if constexpr (requires { object_.in_child(); }) object_.in_child();
    mutex_.unlock();
  }

  std::mutex mutex_;
  T object_;
};

}  // namespace cairn::os
