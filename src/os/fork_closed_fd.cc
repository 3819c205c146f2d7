#include "os/fork_closed_fd.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace cairn::os {

// The list of all ForkClosedFd objects. A fork copies the whole process: the list must cover the whole process too, and
// no single object can own the list.
class ForkClosedFds {
 public:
  static ForkClosedFds& all() {
    // Never destroyed: descriptors may be closed during the exit of the process.
    static auto& fds = *new ForkClosedFds;
    return fds;
  }

  void add(ForkClosedFd& fd) {
    const std::lock_guard lock(mutex_);
    fds_.insert(&fd);
  }
  // Closes the descriptor under the mutex: a fork sees the descriptor either in the list or closed.
  void close(ForkClosedFd& fd) {
    const std::lock_guard lock(mutex_);
    fds_.erase(&fd);
    const int number = fd.number_.exchange(-1);
    if (number >= 0) ::close(number);
  }

 private:
  // The fork handlers hold the mutex during a fork: the child never sees a half-changed list.
  ForkClosedFds() {
    pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); }, [] { all().close_in_child(); });
  }

  void close_in_child() {
    for (ForkClosedFd* fd : fds_) ::close(fd->number_.exchange(-1));
    fds_.clear();  // the child may destroy the objects: reset() then finds no descriptor, and leaves the list alone
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::set<ForkClosedFd*> fds_;
};

ForkClosedFd::ForkClosedFd(Fd fd) : number_(fd ? std::move(fd).release() : -1) {
  if (get() >= 0) ForkClosedFds::all().add(*this);
}

void ForkClosedFd::reset() noexcept {
  if (get() < 0) return;
  ForkClosedFds::all().close(*this);
}

}  // namespace cairn::os
