// Fd: an owned file descriptor.
#pragma once

#include <cairn/result.h>

#include <utility>

namespace cairn::os {

// Closes on destruction; close() reports an error of closing. One thread at a time.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  // The caller owns the returned descriptor.
  int release() && noexcept { return std::exchange(fd_, -1); }
  // Some file systems report a failed write only at the close.
  Result<void> close() &&;

 private:
  void reset() noexcept;
  int fd_ = -1;
};

}  // namespace cairn::os
