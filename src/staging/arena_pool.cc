#include "staging/arena_pool.h"

#include <chrono>
#include <utility>

namespace cairn::staging {
namespace {

constexpr std::chrono::milliseconds kPollInterval{20};

}  // namespace

Result<std::shared_ptr<Arena>> ArenaPool::take(const std::function<bool()>& interrupted) {
  std::unique_lock lock(mutex_);
  while (free_.empty() && made_ == generations_) {
    changed_.wait_for(lock, kPollInterval);
    if (!interrupted) continue;
    lock.unlock();  // the caller's function may take its time, and locks of its own
    const bool stop_now = interrupted();
    lock.lock();
    if (stop_now) return Error(ErrorCode::kCancelled, "interrupted while waiting for an earlier save");
  }
  if (!free_.empty()) {
    std::shared_ptr<Arena> arena = std::move(free_.back());
    free_.pop_back();
    return arena;
  }
  CAIRN_TRY_ASSIGN(std::shared_ptr<Arena> arena, Arena::make());
  ++made_;
  return arena;
}

void ArenaPool::give_back(std::shared_ptr<Arena> arena) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(arena));
  changed_.notify_all();
}

std::size_t ArenaPool::arena_count() const {
  const std::lock_guard lock(mutex_);
  return made_;
}

}  // namespace cairn::staging
