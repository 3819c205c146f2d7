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
#include "os/growing_memory.h"

namespace cairn::os {

class MemoryFile final : public GrowingMemory {
 public:
  // `name` appears in /proc.
  static Result<MemoryFile> create(const char* name);
  // Takes over a memory file made and sent by another process. kInvalidArgument if `fd` is not a memory file.
  static Result<MemoryFile> adopt(Fd fd);

  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&& other) noexcept;
  ~MemoryFile() override;

  // -1 in a child made by fork.
  int fd() const noexcept { return fd_->get(); }
  std::span<std::byte> bytes() const noexcept override { return bytes_; }
  std::uint64_t present_bytes() const noexcept override;
  Result<void> resize(std::uint64_t bytes) override;
  // The system decides about huge pages (/sys/kernel/mm/transparent_hugepage/shmem_enabled).
  Result<void> populate(std::uint64_t offset, std::uint64_t length, PageSize pages = PageSize::kFastest) override;
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
