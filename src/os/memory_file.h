// MemoryFile: anonymous memory that has a descriptor, so that another process can be given it and it outlives the one
// that made it. Mapped shared as long as the object lives.
//
// Movable; one thread at a time changes its size. A child made by fork has neither the mapping nor the descriptor: one
// that lives long would keep the memory.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "os/fd.h"
#include "os/fork_closed_fd.h"

namespace cairn::os {

class MemoryFile {
 public:
  // `name` is what /proc shows.
  static Result<MemoryFile> create(const char* name);
  // One that another process made and sent. kInvalidArgument if it is not of that kind.
  static Result<MemoryFile> adopt(Fd fd);

  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&& other) noexcept;
  ~MemoryFile();

  // -1 in a child made by fork.
  int fd() const noexcept { return fd_->get(); }
  std::span<std::byte> bytes() const noexcept { return bytes_; }

  // Bytes of memory that its pages take, in RAM or swap. From any thread.
  std::uint64_t present_bytes() const noexcept;

  // To that many bytes, rounded up to pages: what is new reads as zeros, what is cut off goes back to the system. Views
  // end. kNoSpace if the system has not so much.
  Result<void> resize(std::uint64_t bytes);
  // Makes the pages of [offset, offset + length) be there, so that writing to them finds them. kNoSpace.
  Result<void> populate(std::uint64_t offset, std::uint64_t length) const;
  // Maps anew what another process resized.
  Result<void> remap();

 private:
  explicit MemoryFile(Fd fd) : fd_(std::make_unique<ForkClosedFd>(std::move(fd))) {}
  Result<void> map(std::uint64_t bytes);
  void unmap() noexcept;

  std::unique_ptr<ForkClosedFd> fd_;
  std::span<std::byte> bytes_;
};

}  // namespace cairn::os
