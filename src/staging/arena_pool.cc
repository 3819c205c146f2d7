#include "staging/arena_pool.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

namespace cairn::staging {
namespace {

constexpr std::chrono::milliseconds kPollInterval{20};

// Of arenas other than `arena`.
template <typename Arenas>
std::uint64_t sum_of(const Arenas& arenas, const Arena* arena, std::uint64_t (*figure)(const Arena&)) {
  std::uint64_t sum = 0;
  for (const auto& other : arenas) sum += &*other == arena ? 0 : figure(*other);
  return sum;
}

}  // namespace

struct ArenaPool::Shelf {
  Shelf(std::size_t count, std::shared_ptr<const os::MemoryLimits> heeded)
      : generations(count), limits(std::move(heeded)) {
    free.reserve(count);
  }

  void put_back(std::shared_ptr<Arena> arena) {
    const std::lock_guard lock(mutex);
    arena->note_free();
    if (arena->lacks_memory()) (void)arena->fit(0);
    std::erase(lent, arena.get());
    free.push_back(std::move(arena));
    changed.notify_all();
  }

  // The following are called under the lock.

  // Whether no arena will come back before a call into the storage returns that hangs.
  bool is_stuck() const {
    return std::all_of(lent.begin(), lent.end(), [](const Arena* arena) { return arena->is_stuck(); });
  }

  // The free arena that lacks least for `bytes`, of several the one used last; null if none is free.
  std::shared_ptr<Arena> best_free(std::optional<std::uint64_t> bytes) const {
    std::shared_ptr<Arena> best;
    for (const auto& arena : free) {
      if (!best || !bytes || arena->missing_bytes(*bytes) <= best->missing_bytes(*bytes)) best = arena;
    }
    return best;
  }

  // What is to be taken until `arena`, null for a new one, has `bytes`, and the lent ones have what they are promised.
  std::uint64_t needed_for(const Arena* arena, std::uint64_t bytes) const {
    const std::uint64_t mine = arena != nullptr ? arena->missing_bytes(bytes) : bytes;
    return mine <= Arena::kSmallBytes ? 0
                                      : mine + sum_of(lent, arena, [](const Arena& a) { return a.missing_bytes(); });
  }

  // kNoSpace if the limits do not leave that much room. Free arenas but `arena` lose their memory if that helps.
  Result<void> expect_room(const Arena* arena, std::uint64_t needed) {
    if (limits == nullptr || needed == 0) return {};
    os::MemoryRoom room = limits->room(needed);
    if (room.bytes < needed && sum_of(free, arena, [](const Arena& a) { return a.present_bytes(); }) > 0) {
      for (const auto& other : free) {
        if (other.get() != arena) CAIRN_TRY(other->fit(0));
      }
      room = limits->room(needed);
    }
    if (room.bytes >= needed) return {};
    return no_room(room, needed);
  }

  // Whether `bytes` would fit if every lent arena came back.
  bool may_fit_later(const Arena* arena, std::uint64_t bytes) const {
    const std::uint64_t returning = sum_of(lent, arena, [](const Arena& a) { return a.present_bytes(); });
    const std::uint64_t mine = arena != nullptr ? arena->missing_bytes(bytes) : bytes;
    return !is_stuck() && (mine <= returning || limits->room(mine - returning).bytes >= mine - returning);
  }

  // An arena with room for `bytes`, which is then lent; null: one may come back that will do.
  Result<std::shared_ptr<Arena>> pick(std::optional<std::uint64_t> bytes) {
    std::shared_ptr<Arena> arena = best_free(bytes);
    if (!arena && made == generations) {
      if (!is_stuck()) return arena;
      return Error(ErrorCode::kUnavailable,
                   "no memory for another save: saves that were given up hold all of it, until their calls to the "
                   "storage, which hang, return")
          .expected("an arena of " + std::to_string(generations) + " to be free");
    }
    if (bytes) {
      const Result<void> room = expect_room(arena.get(), needed_for(arena.get(), *bytes));
      if (!room && room.error().code() == ErrorCode::kNoSpace && may_fit_later(arena.get(), *bytes)) {
        return std::shared_ptr<Arena>();
      }
      if (!room) return room.error();
    }
    const bool is_new = !arena;
    if (is_new) {
      CAIRN_TRY_ASSIGN(arena, Arena::make(limits));
    }
    if (bytes) CAIRN_TRY(arena->fit(*bytes));
    made += is_new ? 1 : 0;
    std::erase(free, arena);
    lent.push_back(arena.get());
    return arena;
  }

  const std::size_t generations;
  const std::shared_ptr<const os::MemoryLimits> limits;
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t made = 0;
  std::vector<const Arena*> lent;
  std::vector<std::shared_ptr<Arena>> free;  // the one used last at the end: its pages are the warmest
};

ArenaPool::ArenaPool(std::size_t generations, std::shared_ptr<const os::MemoryLimits> limits)
    : shelf_(std::make_shared<Shelf>(std::max<std::size_t>(generations, 1), std::move(limits))) {}

Result<std::shared_ptr<Arena>> ArenaPool::take(std::optional<std::uint64_t> bytes,
                                               const std::function<bool()>& interrupted) {
  std::unique_lock lock(shelf_->mutex);
  std::shared_ptr<Arena> arena;
  for (;;) {
    CAIRN_TRY_ASSIGN(arena, shelf_->pick(bytes));
    if (arena) break;
    shelf_->changed.wait_for(lock, kPollInterval);
    if (!interrupted) continue;
    lock.unlock();  // the caller's function may take its time, and locks of its own
    const bool stop_now = interrupted();
    lock.lock();
    if (stop_now) return Error(ErrorCode::kCancelled, "interrupted while waiting for an earlier save");
  }
  lock.unlock();
  // What the borrowers share owns the arena and, when it goes, puts it back.
  Arena* const lent = arena.get();
  return std::shared_ptr<Arena>(
      lent, [shelf = shelf_, arena = std::move(arena)](Arena*) mutable { shelf->put_back(std::move(arena)); });
}

Result<void> ArenaPool::fit(std::shared_ptr<Arena>& arena, std::uint64_t bytes,
                            const std::function<bool()>& interrupted) {
  {
    const std::lock_guard lock(shelf_->mutex);
    Result<void> room = shelf_->expect_room(arena.get(), shelf_->needed_for(arena.get(), bytes));
    if (room) return arena->fit(bytes);
    if (room.error().code() != ErrorCode::kNoSpace) return room;
  }
  arena.reset();  // it may be just what is missing
  CAIRN_TRY_ASSIGN(arena, take(bytes, interrupted));
  return {};
}

std::size_t ArenaPool::arena_count() const {
  const std::lock_guard lock(shelf_->mutex);
  return shelf_->made;
}

}  // namespace cairn::staging
