// ArenaPool: the arenas of one rank, lent to one save at a time and used again from save to save.
//
// An arena gets more memory only if the limits leave room for it (os/memory_limits.h). Otherwise the pool first gives
// back what its free arenas have, then waits for a lent one to come back; it fails if that would not be enough either.
// While a save waits for memory, the pool looks at the limits again when an arena has come back, and at intervals, for
// a program other than this one may have given memory back.
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
  // At most `generations` arenas: so many saves can be under way at a time. `limits` null: none are looked at.
  explicit ArenaPool(std::size_t generations, std::shared_ptr<const os::MemoryLimits> limits = nullptr,
                     std::chrono::milliseconds look_interval = std::chrono::seconds(1));

  // An arena that no save uses, with room for `bytes`; nullopt: that is not known yet, fit() makes it. Waits for one if
  // need be. It comes back when the last copy of the pointer is gone, also after the pool itself.
  //
  // kCancelled once `interrupted`, asked every few milliseconds without a lock of the pool, says true. kUnavailable if
  // saves that were given up hold all of the arenas. kNoSpace if there is not so much memory, with what is lent counted
  // as free; also if there would be so much, but no arena that brings it has come back within `memory_wait_max`
  // (nullopt: that wait has no limit) from the first look at the limits that found too little. A wait for one of the
  // `generations` alone is not limited.
  Result<std::shared_ptr<Arena>> take(std::optional<std::uint64_t> bytes, const std::function<bool()>& interrupted = {},
                                      std::optional<std::chrono::milliseconds> memory_wait_max = {});
  // Makes room for `bytes` in an arena of this pool that only the caller has. If there is no memory for it, the arena
  // is put back and another one taken as take() does; all of that wait counts as one for memory. After an error `arena`
  // may be null.
  Result<void> fit(std::shared_ptr<Arena>& arena, std::uint64_t bytes, const std::function<bool()>& interrupted = {},
                   std::optional<std::chrono::milliseconds> memory_wait_max = {});

  // Arenas that there are.
  std::size_t arena_count() const;

 private:
  struct Shelf;
  std::shared_ptr<Arena> lend(std::shared_ptr<Arena> arena) const;

  std::shared_ptr<Shelf> shelf_;
};

}  // namespace cairn::staging
