// Arena: the memory that one save's bytes are staged in, laid out as its files. It belongs to no process alone: a
// writer process is given its descriptor, and keeps it when the trainer dies.
//
// One save at a time owns it (arena_pool.h sees to that), and with it the right to change its size. Before the bytes
// lies a page that tells how far they are staged, so that whoever writes them can begin with the first while the last
// are copied.
#pragma once

#include <cairn/result.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "os/memory_file.h"
#include "os/memory_limits.h"
#include "os/page_buffer.h"

namespace cairn::staging {

// kNoSpace: `room` is less than the `needed` bytes of an arena.
Error no_room(const os::MemoryRoom& room, std::uint64_t needed);

class Arena {
 public:
  // `limits` are looked at before its pages are made; null: none are.
  static Result<std::shared_ptr<Arena>> make(std::shared_ptr<const os::MemoryLimits> limits = nullptr);
  // The arena that another process sent. kInvalidArgument if it is too small to be one.
  static Result<std::shared_ptr<Arena>> adopt(os::MemoryFile memory);
  explicit Arena(os::MemoryFile memory) : memory_(std::move(memory)) {}

  // Tells arenas of this process apart; never used twice.
  std::uint64_t id() const noexcept { return id_; }
  int fd() const noexcept { return memory_.fd(); }
  std::span<std::byte> bytes() const noexcept {
    return memory_.bytes().empty() ? memory_.bytes() : memory_.bytes().subspan(os::kPageBytes);
  }
  // Expires with the arena itself, however often it is lent meanwhile.
  std::weak_ptr<const void> life() const noexcept { return life_; }

  // All of [0, staged()) are as they will be saved; kAll: everything. Any process that has the arena may ask.
  static constexpr std::uint64_t kAll = UINT64_MAX;
  std::uint64_t staged() const noexcept { return mark().load(std::memory_order_acquire); }
  // By whoever stages: before a new save begins, and then as it gets on, which never goes backwards.
  void forget_staged() noexcept { mark().store(0, std::memory_order_release); }
  void note_staged(std::uint64_t bytes) noexcept {
    std::uint64_t known = mark().load(std::memory_order_relaxed);
    while (known < bytes && !mark().compare_exchange_weak(known, bytes, std::memory_order_acq_rel)) {
    }
  }

  // The save that has it was given up, and a thread that hangs in the kernel may still use it: it comes back when that
  // thread does, if ever.
  void note_stuck() noexcept { stuck_ = true; }
  void note_free() noexcept { stuck_ = false; }
  bool is_stuck() const noexcept { return stuck_; }

  // Its memory, with the page that tells how far it is staged: what its pages take now, and what is still to be taken
  // for the size of the last fit(), or for `bytes`. From any thread.
  std::uint64_t present_bytes() const noexcept { return memory_.present_bytes(); }
  std::uint64_t missing_bytes() const noexcept { return missing_bytes(wanted_); }
  std::uint64_t missing_bytes(std::uint64_t bytes) const noexcept;

  // An arena of which so little is missing is made without a look at the limits: a program takes as much for its heap
  // at any time.
  static constexpr std::uint64_t kSmallBytes = std::uint64_t{4} << 20;

  // Makes room for `bytes`. What is there is kept if it is enough and not more than twice too much. kNoSpace.
  Result<void> fit(std::uint64_t bytes);
  // Makes the pages of this range be there, unless they are known to be: memory that can't be had is an error here and
  // would be the end of the process later. kNoSpace if a limit leaves no room. From several threads for ranges that do
  // not overlap.
  Result<void> make_present(std::uint64_t offset, std::uint64_t length) {
    return offset + length <= present_ ? Result<void>() : take_memory(offset, length);
  }
  // Whether make_present() has failed since the last change of size: its memory is better given back.
  bool lacks_memory() const noexcept { return lacks_memory_; }
  // All of the first `bytes` are there by now.
  void note_present(std::uint64_t bytes) noexcept { present_ = std::max(present_, bytes); }
  // After the process that owns it changed its size.
  Result<void> remap() { return memory_.remap(); }

 private:
  Result<void> take_memory(std::uint64_t offset, std::uint64_t length);
  Result<void> expect_room(std::uint64_t length);

  // Shared with other processes. There is memory: make() and adopt() see to that.
  std::atomic_ref<std::uint64_t> mark() const noexcept {
    return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(memory_.bytes().data()));
  }

  os::MemoryFile memory_;
  std::shared_ptr<const os::MemoryLimits> limits_;  // shared by the arenas of a pool; null: none are looked at
  std::atomic<std::uint64_t> wanted_{0};            // bytes that the last fit() was for
  std::shared_ptr<const void> life_ = std::make_shared<char>();
  std::uint64_t id_ = 0;
  std::uint64_t present_ = 0;
  std::atomic<std::uint64_t> granted_{0};  // bytes that may be taken before the limits are looked at again
  std::atomic<bool> lacks_memory_{false};
  std::atomic<bool> stuck_{false};
};

}  // namespace cairn::staging
