// Arena: the memory that holds the staged bytes of one save, laid out like the save's files. For a writer process the
// arena is shared memory: the process receives its descriptor, and keeps the memory if the trainer dies. Otherwise the
// memory is the trainer's own, and has huge pages: the first copy into new memory is then two to three times as fast.
//
// One save at a time owns the arena (arena_pool.h assigns the owner), and only the owner changes its size. A page
// before the bytes holds the staged mark, the number of bytes staged so far: the writer can write the first bytes while
// the last bytes are still being copied.
#pragma once

#include <cairn/result.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/registration.h"
#include "os/memory_file.h"
#include "os/memory_limits.h"
#include "os/page_buffer.h"
#include "os/private_memory.h"

namespace cairn::staging {

// kNoSpace: `room` is less than the `needed` bytes of an arena.
Error no_room(const os::MemoryRoom& room, std::uint64_t needed);

class Arena {
 public:
  // `limits` are checked before pages are allocated; null: no check.
  static Result<std::shared_ptr<Arena>> make(std::shared_ptr<const os::MemoryLimits> limits = nullptr);
  // An arena as share() makes it.
  static Result<std::shared_ptr<Arena>> make_shared(std::shared_ptr<const os::MemoryLimits> limits = nullptr);
  // The arena behind memory sent by another process. kInvalidArgument if the memory is too small for an arena.
  static Result<std::shared_ptr<Arena>> adopt(os::MemoryFile memory);
  Arena() : memory_(std::make_unique<os::PrivateMemory>()) {}
  explicit Arena(os::MemoryFile memory) { use(std::move(memory)); }
  ~Arena() { withdraw_registration(); }

  // Identifies the arena within this process; never reused.
  std::uint64_t id() const noexcept { return id_; }
  std::span<std::byte> bytes() const noexcept {
    const std::span<std::byte> all = memory_->bytes();
    return all.empty() ? all : all.subspan(os::kPageBytes);
  }

  // Turns the arena's memory into shared memory; memory that is not shared yet is freed. By the owner, before fit().
  Result<void> share();
  bool is_shared() const noexcept { return file_ != nullptr; }
  // Of shared memory.
  int fd() const noexcept { return file_->fd(); }
  // Expires when the arena is destroyed, and not at the end of a loan.
  std::weak_ptr<const void> life() const noexcept { return life_; }

  // The bytes [0, staged()) are as they will be saved; kAll: all bytes. Any process with the arena may call staged().
  static constexpr std::uint64_t kAll = UINT64_MAX;
  std::uint64_t staged() const noexcept { return mark().load(std::memory_order_acquire); }
  // For the staging side only: reset before a new save, then raise as the copy proceeds. note_staged never lowers the
  // mark.
  void forget_staged() noexcept { mark().store(0, std::memory_order_release); }
  void note_staged(std::uint64_t bytes) noexcept {
    std::uint64_t known = mark().load(std::memory_order_relaxed);
    while (known < bytes && !mark().compare_exchange_weak(known, bytes, std::memory_order_acq_rel)) {
    }
  }

  // note_stuck: the arena's save was given up, and a thread that hangs in the kernel, or a device, may still use the
  // arena. The arena returns to the pool when the thread returns or the device is done, if ever.
  void note_stuck() noexcept { stuck_ = true; }
  void note_free() noexcept { stuck_ = false; }
  bool is_stuck() const noexcept { return stuck_; }

  // The arena's memory, including the page of the staged mark: the bytes that its pages take now, and the bytes still
  // to be allocated for the size of the last fit(), or for `bytes`. From any thread.
  std::uint64_t present_bytes() const noexcept { return memory_->present_bytes(); }
  std::uint64_t missing_bytes() const noexcept { return missing_bytes(wanted_); }
  std::uint64_t missing_bytes(std::uint64_t bytes) const noexcept;

  // If at most so many bytes are missing, the arena is allocated without a check of the limits: the program's heap may
  // grow as much at any time.
  static constexpr std::uint64_t kSmallBytes = std::uint64_t{4} << 20;

  // Makes room for `bytes`. Keeps the present memory if it is large enough and at most twice as large as needed.
  // kNoSpace.
  Result<void> fit(std::uint64_t bytes);
  // Allocates the pages of the range, unless they are known to be present: lack of memory is an error here, and would
  // kill the process later. kNoSpace if a limit leaves no room. Several threads may call with ranges that do not
  // overlap.
  Result<void> make_present(std::uint64_t offset, std::uint64_t length, os::PageSize pages = os::PageSize::kFastest) {
    return offset + length <= present_ ? Result<void>() : take_memory(offset, length, pages);
  }
  // Whether make_present() has failed since the last change of size. The pool then frees the memory of the arena.
  bool lacks_memory() const noexcept { return lacks_memory_; }
  // Records that the first `bytes` are present.
  void note_present(std::uint64_t bytes) noexcept { present_ = std::max(present_, bytes); }
  // The first bytes that are known to be present.
  std::uint64_t known_present() const noexcept { return present_; }
  // The registration of the memory that is known to be present with a driver: pages are registered piece by piece, by
  // the returned object, also while the arena is used. A change of size ends the registration. `ordinal`: a device of
  // the program.
  std::shared_ptr<device::Registration> begin_registration(device::Driver& driver, std::int32_t ordinal);
  // Null before begin_registration().
  const std::shared_ptr<device::Registration>& registration() const noexcept { return registration_; }
  // Whether the bytes [0, end) are registered.
  bool is_registered(std::uint64_t end) const noexcept {
    return registration_ != nullptr && registration_->covers(os::kPageBytes + end);
  }

  // Of shared memory; to be called after the owner, in a different process, has changed the size.
  Result<void> remap() { return file_->remap(); }

 private:
  void use(os::MemoryFile memory);
  Result<void> take_memory(std::uint64_t offset, std::uint64_t length, os::PageSize pages);
  Result<void> expect_room(std::uint64_t length);
  void withdraw_registration() noexcept;

  // The mark is shared with other processes. make() and adopt() ensure that its memory exists.
  std::atomic_ref<std::uint64_t> mark() const noexcept {
    return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(memory_->bytes().data()));
  }

  std::unique_ptr<os::GrowingMemory> memory_;
  os::MemoryFile* file_ = nullptr;  // memory_, if the memory is shared
  // Shared with the thread that registers the pieces; null: not begun since the last change of size.
  std::shared_ptr<device::Registration> registration_;
  std::shared_ptr<const os::MemoryLimits> limits_;  // shared by the arenas of a pool; null: no check
  std::atomic<std::uint64_t> wanted_{0};            // argument of the last fit()
  std::shared_ptr<const void> life_ = std::make_shared<char>();
  std::uint64_t id_ = 0;
  std::uint64_t present_ = 0;
  std::atomic<std::uint64_t> granted_{0};  // bytes that may be taken before the next check of the limits
  std::atomic<bool> lacks_memory_{false};
  std::atomic<bool> stuck_{false};
};

}  // namespace cairn::staging
