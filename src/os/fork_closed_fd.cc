#include "os/fork_closed_fd.h"

#include <unistd.h>

#include <set>

#include "os/process_state.h"

namespace cairn::os {

// The list of all ForkClosedFd objects. A fork copies the whole process: the list must cover the whole process too, and
// no single object can own the list.
class ForkClosedFds {
 public:
  void add(ForkClosedFd& fd) { fds_.insert(&fd); }
  // A fork, which waits for this call, sees the descriptor either in the list or closed.
  void close(ForkClosedFd& fd) {
    fds_.erase(&fd);
    const int number = fd.number_.exchange(-1);
    if (number >= 0) ::close(number);
  }
  void in_child() {
    for (ForkClosedFd* fd : fds_) ::close(fd->number_.exchange(-1));
    fds_.clear();  // the child may destroy the objects: reset() then finds no descriptor, and leaves the list alone
  }

 private:
  std::set<ForkClosedFd*> fds_;
};

namespace {

ProcessState<ForkClosedFds>& all_fds = ProcessState<ForkClosedFds>::instance();

}  // namespace

ForkClosedFd::ForkClosedFd(Fd fd) : number_(fd ? std::move(fd).release() : -1) {
  if (get() >= 0) all_fds.use([this](ForkClosedFds& all) { all.add(*this); });
}

void ForkClosedFd::reset() noexcept {
  if (get() < 0) return;
  all_fds.use([this](ForkClosedFds& all) { all.close(*this); });
}

}  // namespace cairn::os
