// ArenaPool: the arenas of one rank, lent to one save at a time and used again from save to save.
//
// An arena gets more memory only if the limits leave room for it (os/memory_limits.h). Otherwise the pool first gives
// back what its free arenas have, then waits for a lent one to come back; it fails if that would not be enough either.
//
// Thread-safe.
#pragma once

#include <cairn/result.h>

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
  explicit ArenaPool(std::size_t generations, std::shared_ptr<const os::MemoryLimits> limits = nullptr);

  // An arena that no save uses, with room for `bytes`; nullopt: that is not known yet, fit() makes it. Waits for one if
  // need be. It comes back when the last copy of the pointer is gone, also after the pool itself. kCancelled once
  // `interrupted`, asked every few milliseconds, says true. kUnavailable if saves that were given up hold all of them.
  // kNoSpace if there is not so much memory, with what is lent counted as free.
  Result<std::shared_ptr<Arena>> take(std::optional<std::uint64_t> bytes,
                                      const std::function<bool()>& interrupted = {});
  // Makes room for `bytes` in an arena of this pool that only the caller has. If there is no memory for it, the arena
  // is put back and another one taken as take() does. After an error `arena` may be null.
  Result<void> fit(std::shared_ptr<Arena>& arena, std::uint64_t bytes, const std::function<bool()>& interrupted = {});

  // Arenas that there are.
  std::size_t arena_count() const;

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace cairn::staging
