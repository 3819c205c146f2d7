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

}  // namespace

struct ArenaPool::Shelf {
  explicit Shelf(std::size_t count) : generations(count) { free.reserve(count); }

  void put_back(std::shared_ptr<Arena> arena) {
    const std::lock_guard lock(mutex);
    arena->note_free();
    std::erase(lent, arena.get());
    free.push_back(std::move(arena));
    changed.notify_all();
  }

  // Whether no arena will come back before a call into the storage returns that hangs. Under the lock.
  bool is_stuck() const {
    return std::all_of(lent.begin(), lent.end(), [](const Arena* arena) { return arena->is_stuck(); });
  }

  const std::size_t generations;
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t made = 0;
  std::vector<const Arena*> lent;
  std::vector<std::shared_ptr<Arena>> free;  // the one used last at the end: its pages are the warmest
};

ArenaPool::ArenaPool(std::size_t generations)
    : shelf_(std::make_shared<Shelf>(std::max<std::size_t>(generations, 1))) {}

Result<std::shared_ptr<Arena>> ArenaPool::take(const std::function<bool()>& interrupted) {
  std::unique_lock lock(shelf_->mutex);
  while (shelf_->free.empty() && shelf_->made == shelf_->generations) {
    if (shelf_->is_stuck()) {
      return Error(ErrorCode::kUnavailable,
                   "no memory for another save: saves that were given up hold all of it, until their calls to the "
                   "storage, which hang, return")
          .expected("an arena of " + std::to_string(shelf_->generations) + " to be free");
    }
    shelf_->changed.wait_for(lock, kPollInterval);
    if (!interrupted) continue;
    lock.unlock();  // the caller's function may take its time, and locks of its own
    const bool stop_now = interrupted();
    lock.lock();
    if (stop_now) return Error(ErrorCode::kCancelled, "interrupted while waiting for an earlier save");
  }
  std::shared_ptr<Arena> arena;
  if (!shelf_->free.empty()) {
    arena = std::move(shelf_->free.back());
    shelf_->free.pop_back();
  } else {
    CAIRN_TRY_ASSIGN(arena, Arena::make());
    ++shelf_->made;
  }
  Arena* const lent = arena.get();
  shelf_->lent.push_back(lent);
  lock.unlock();
  // What the borrowers share owns the arena and, when it goes, puts it back.
  return std::shared_ptr<Arena>(
      lent, [shelf = shelf_, arena = std::move(arena)](Arena*) mutable { shelf->put_back(std::move(arena)); });
}

std::size_t ArenaPool::arena_count() const {
  const std::lock_guard lock(shelf_->mutex);
  return shelf_->made;
}

}  // namespace cairn::staging
