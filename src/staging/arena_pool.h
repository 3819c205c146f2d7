// ArenaPool: the arenas of one rank, lent to one save at a time and used again from save to save.
//
// Thread-safe.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "staging/arena.h"

namespace cairn::staging {

class ArenaPool {
 public:
  // At most `generations` arenas: so many saves can be under way at a time.
  explicit ArenaPool(std::size_t generations);

  // An arena that nobody uses; waits for one if need be. It comes back when the last copy of the pointer is gone, also
  // after the pool itself. Its size is what it was: fit() it. kCancelled once `interrupted`, asked every few
  // milliseconds, says true. kUnavailable if saves that were given up hold all of them.
  Result<std::shared_ptr<Arena>> take(const std::function<bool()>& interrupted = {});

  // Arenas that there are.
  std::size_t arena_count() const;

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace cairn::staging
