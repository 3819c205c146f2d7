// ArenaPool: the arenas of one rank, lent to one save at a time and used again from save to save.
//
// Thread-safe.
#pragma once

#include <cairn/result.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "staging/arena.h"

namespace cairn::staging {

class ArenaPool {
 public:
  // At most `generations` arenas: so many saves can be under way at a time.
  explicit ArenaPool(std::size_t generations) : generations_(generations == 0 ? 1 : generations) {}

  // An arena that nobody uses; waits for one if need be. Its size is what it was: fit() it. kCancelled once
  // `interrupted`, asked every few milliseconds, says true.
  Result<std::shared_ptr<Arena>> take(const std::function<bool()>& interrupted = {});
  void give_back(std::shared_ptr<Arena> arena);

  std::size_t arena_count() const;

 private:
  std::size_t generations_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t made_ = 0;
  std::vector<std::shared_ptr<Arena>> free_;  // the one used last at the end: its pages are the warmest
};

}  // namespace cairn::staging
