// Arena: the memory that one save's bytes are staged in, laid out as its files. It belongs to no process alone: a
// writer process is given its descriptor, and keeps it when the trainer dies.
//
// One save at a time owns it (arena_pool.h sees to that), and with it the right to change its size.
#pragma once

#include <cairn/result.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "os/memory_file.h"

namespace cairn::staging {

class Arena {
 public:
  static Result<std::shared_ptr<Arena>> make();
  // The arena that another process sent.
  explicit Arena(os::MemoryFile memory) : memory_(std::move(memory)) {}

  // Tells arenas of this process apart; never used twice.
  std::uint64_t id() const noexcept { return id_; }
  int fd() const noexcept { return memory_.fd(); }
  std::span<std::byte> bytes() const noexcept { return memory_.bytes(); }

  // Makes room for `bytes`. What is there is kept if it is enough and not more than twice too much. kNoSpace.
  Result<void> fit(std::uint64_t bytes);
  // Makes the pages of this range be there, unless they are known to be: memory that can't be had is an error here and
  // would be the end of the process later. From several threads for ranges that do not overlap.
  Result<void> make_present(std::uint64_t offset, std::uint64_t length) const {
    return offset + length <= present_ ? Result<void>() : memory_.populate(offset, length);
  }
  // All of the first `bytes` are there by now.
  void note_present(std::uint64_t bytes) noexcept { present_ = std::max(present_, bytes); }
  // After the process that owns it changed its size.
  Result<void> remap() { return memory_.remap(); }

 private:
  os::MemoryFile memory_;
  std::uint64_t id_ = 0;
  std::uint64_t present_ = 0;
};

}  // namespace cairn::staging
