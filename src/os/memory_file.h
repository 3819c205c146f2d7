// MemoryFile: anonymous shared memory with a descriptor. The descriptor can be sent to a second process, and the memory
// then outlives the creator. The memory is mapped while the object lives.
//
// Movable; only one thread at a time may change the size. A child made by fork has neither the mapping nor the
// descriptor: a long-lived child must not keep the memory.
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
  // `name` appears in /proc.
  static Result<MemoryFile> create(const char* name);
  // Takes over a memory file made and sent by another process. kInvalidArgument if `fd` is not a memory file.
  static Result<MemoryFile> adopt(Fd fd);

  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&& other) noexcept;
  ~MemoryFile();

  // -1 in a child made by fork.
  int fd() const noexcept { return fd_->get(); }
  std::span<std::byte> bytes() const noexcept { return bytes_; }

  // Bytes of memory taken by the pages of the file, in RAM or swap. From any thread.
  std::uint64_t present_bytes() const noexcept;

  // Changes the size to `bytes`, rounded up to pages. New bytes read as zeros; the pages cut off are freed. Earlier
  // spans become invalid. kNoSpace if the system lacks the memory.
  Result<void> resize(std::uint64_t bytes);
  // Allocates the pages of [offset, offset + length): later writes cause no page faults. kNoSpace.
  Result<void> populate(std::uint64_t offset, std::uint64_t length) const;
  // Maps the file again, after another process has resized it.
  Result<void> remap();

 private:
  explicit MemoryFile(Fd fd) : fd_(std::make_unique<ForkClosedFd>(std::move(fd))) {}
  Result<void> map(std::uint64_t bytes);
  bool is_of_this_process() const noexcept;
  void unmap() noexcept;  // only in the process that made the mapping
  void close() noexcept;  // unmaps too

  std::unique_ptr<ForkClosedFd> fd_;
  std::span<std::byte> bytes_;
};

}  // namespace cairn::os
