// ForkClosedFd: an owned file descriptor that is closed in a child made by fork; in the child, get() is -1.
//
// For a descriptor whose last close has an effect, such as a socket's end of stream: a child with a copy would delay
// the effect. get() may be called from any thread, also during a fork. All other calls are for one thread at a time.
#pragma once

#include <atomic>

#include "os/fd.h"

namespace cairn::os {

class ForkClosedFd {
 public:
  ForkClosedFd() = default;
  explicit ForkClosedFd(Fd fd);
  ~ForkClosedFd() { reset(); }
  ForkClosedFd(const ForkClosedFd&) = delete;
  ForkClosedFd& operator=(const ForkClosedFd&) = delete;

  int get() const noexcept { return number_.load(std::memory_order_relaxed); }
  // Closes the descriptor. A fork in a second thread waits for the close: the close must be quick. The last close of a
  // large memory file is slow; MemoryFile keeps the file mapped during the close.
  void reset() noexcept;

 private:
  friend class ForkClosedFds;
  std::atomic<int> number_{-1};
};

}  // namespace cairn::os
