// ArenaPool: the arenas of one rank. Each arena is lent to one save at a time and reused by later saves.
//
// An arena gets more memory only if the memory limits leave room (os/memory_limits.h). If they do not, the pool first
// frees the memory of its free arenas, and then waits for the return of a lent arena. If all lent memory would not
// suffice either, the pool fails. While a save waits for memory, the pool checks the limits after each return of an
// arena, and also at intervals, because a different program may have freed memory.
//
// Thread-safe.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "os/memory_limits.h"
#include "staging/arena.h"

namespace cairn::staging {

class ArenaPool {
 public:
  // At most `generations` arenas, for as many concurrent saves. `limits` null: no check of memory limits.
  explicit ArenaPool(std::size_t generations, std::shared_ptr<const os::MemoryLimits> limits = nullptr,
                     std::chrono::milliseconds look_interval = std::chrono::seconds(1));

  // From now on, all arenas that the pool lends are shared memory, for a writer process.
  void share_with_processes();

  // Lends a free arena with room for `bytes`. With nullopt the size is not known yet, and fit() makes the room later.
  // Waits for a free arena if necessary. The arena returns to the pool when the last copy of the pointer is destroyed,
  // even if the pool is destroyed earlier.
  //
  // take() calls `interrupted` every few milliseconds, without holding a lock of the pool; kCancelled when
  // `interrupted` returns true. kUnavailable if abandoned saves hold all of the arenas. kNoSpace if the memory does not
  // suffice even after the return of all lent arenas. kNoSpace also if the memory would suffice then, but no suitable
  // arena has returned within `memory_wait_max` (nullopt: no limit). The wait starts with the first check of the limits
  // that finds too little room. A wait for one of the `generations` alone has no limit.
  Result<std::shared_ptr<Arena>> take(std::optional<std::uint64_t> bytes, const std::function<bool()>& interrupted = {},
                                      std::optional<std::chrono::milliseconds> memory_wait_max = {});
  // Makes room for `bytes` in an arena of this pool that only the caller holds. If the memory does not suffice, returns
  // the arena to the pool and takes an arena as take() does; the whole wait counts as a wait for memory. After an error
  // `arena` may be null.
  Result<void> fit(std::shared_ptr<Arena>& arena, std::uint64_t bytes, const std::function<bool()>& interrupted = {},
                   std::optional<std::chrono::milliseconds> memory_wait_max = {});

  // For ArenaPreparation. Lends an arena with room for `bytes` and some more, and without pages, if no save has called
  // take() so far; null otherwise, and while a preparation holds an arena. take() waits for the return of this arena.
  std::shared_ptr<Arena> take_to_prepare(std::uint64_t bytes);
  // Whether take() was called.
  bool is_used() const noexcept;
  // Frees the memory of the free arenas if take() was not called yet.
  void free_prepared();
  // The bytes that the limits allow; without limits the largest number. `enough` as in MemoryLimits::room().
  std::uint64_t room(std::uint64_t enough) const;
  // The bytes that the pages of the free arenas take.
  std::uint64_t free_bytes() const;

  // The number of arenas, free and lent.
  std::size_t arena_count() const;

 private:
  struct SharedState;
  std::shared_ptr<Arena> lend(std::shared_ptr<Arena> arena) const;

  std::shared_ptr<SharedState> shared_;
};

}  // namespace cairn::staging
