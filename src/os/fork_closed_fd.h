// ForkClosedFd: an owned file descriptor that a child made by fork does not keep: there it is closed and get() is -1.
//
// For what ends when its last holder closes it: a child that lives on would keep it open unawares. Thread-safe are
// get() and the forks; the rest is for one thread.
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
  void reset() noexcept;

 private:
  friend class ForkClosedFds;
  std::atomic<int> number_{-1};
};

}  // namespace cairn::os
