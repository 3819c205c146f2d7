#include "os/fork_closed_fd.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace cairn::os {

// All that there are. Forking is a matter of the whole process, so this is too: the one list that no object can own.
class ForkClosedFds {
 public:
  static ForkClosedFds& all() {
    // Never destroyed: others may close their descriptors when the process ends.
    static auto& fds = *new ForkClosedFds;
    return fds;
  }

  void add(ForkClosedFd& fd) {
    const std::lock_guard lock(mutex_);
    fds_.insert(&fd);
  }
  void remove(ForkClosedFd& fd) {
    const std::lock_guard lock(mutex_);
    fds_.erase(&fd);
  }

 private:
  // A fork in the middle of add() would leave the child half a list: it waits.
  ForkClosedFds() {
    pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); }, [] { all().close_in_child(); });
  }

  void close_in_child() {
    for (ForkClosedFd* fd : fds_) ::close(fd->number_.exchange(-1));
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
  ForkClosedFds::all().remove(*this);
  const int fd = number_.exchange(-1);
  if (fd >= 0) ::close(fd);
}

}  // namespace cairn::os
