#include "staging/arena_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

namespace cairn::staging {
namespace {

using Clock = std::chrono::steady_clock;

// The interval between two calls of `interrupted`, and between two searches for a free arena.
constexpr std::chrono::milliseconds kPollInterval{20};
// A prepared arena is larger by this share than its pages: a change of size would end the mapping of its pages.
constexpr std::uint64_t kSlackShare = 4;

// The sum of `figure` over `arenas`, without `arena`.
template <typename Arenas>
std::uint64_t sum_of(const Arenas& arenas, const Arena* arena, std::uint64_t (*figure)(const Arena&)) {
  std::uint64_t sum = 0;
  for (const auto& other : arenas) sum += &*other == arena ? 0 : figure(*other);
  return sum;
}

// The time that one save has waited for memory.
class MemoryWait {
 public:
  explicit MemoryWait(std::optional<std::chrono::milliseconds> max) : max_(max) {}

  // `refusal` is the kNoSpace of a check of the limits. The first refusal starts the wait.
  void note(Error refusal) {
    if (!refusal_) start_ = Clock::now();
    refusal_ = std::move(refusal);
  }
  Clock::time_point end() const { return refusal_ && max_ ? start_ + *max_ : Clock::time_point::max(); }

  // The last refusal, with the duration of the wait. Only after a note().
  Error error() const {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start_);
    return Error(*refusal_).while_doing(
        "waiting " + std::to_string(waited.count()) +
        " ms for memory that earlier saves hold; wait for their end before the next save, or raise the progress "
        "deadline (deadline_seconds), which limits this wait");
  }

 private:
  std::optional<std::chrono::milliseconds> max_;
  Clock::time_point start_;
  std::optional<Error> refusal_;
};

}  // namespace

struct ArenaPool::SharedState {
  SharedState(std::size_t count, std::shared_ptr<const os::MemoryLimits> heeded,
              std::chrono::milliseconds between_looks)
      : generations(count), limits(std::move(heeded)), look_interval(between_looks) {
    free.reserve(count);
  }

  void put_back(std::shared_ptr<Arena> arena) {
    const std::lock_guard lock(mutex);
    arena->note_free();
    if (arena->lacks_memory()) (void)arena->fit(0);
    std::erase(lent, arena.get());
    if (arena.get() == in_preparation) in_preparation = nullptr;
    free.push_back(std::move(arena));
    ++return_count;
    returned.notify_all();
  }

  // Lends an arena with room for `bytes`, as ArenaPool::take() does.
  Result<std::shared_ptr<Arena>> take(std::optional<std::uint64_t> bytes, const std::function<bool()>& interrupted,
                                      MemoryWait wait) {
    std::unique_lock lock(mutex);
    is_used = true;
    // The preparation sees is_used after the present piece of memory.
    while (in_preparation != nullptr) CAIRN_TRY(await_return(lock, Clock::now() + kPollInterval, interrupted));
    for (;;) {
      std::optional<Error> refusal;
      CAIRN_TRY_ASSIGN(std::shared_ptr<Arena> arena, pick(bytes, refusal));
      if (arena) return arena;
      const Clock::time_point now = Clock::now();
      const std::chrono::milliseconds interval = refusal ? look_interval : kPollInterval;
      if (refusal) wait.note(*std::move(refusal));
      if (now >= wait.end()) return wait.error();
      CAIRN_TRY(await_return(lock, std::min(now + interval, wait.end()), interrupted));
    }
  }

  std::shared_ptr<Arena> take_to_prepare(std::uint64_t bytes) {
    const std::lock_guard lock(mutex);
    if (is_used || in_preparation != nullptr) return nullptr;
    std::shared_ptr<Arena> arena;
    if (!free.empty()) {
      arena = free.back();
      if (shares && !arena->share()) return nullptr;
    } else {
      Result<std::shared_ptr<Arena>> is_new = make_arena();
      if (!is_new) return nullptr;
      arena = std::move(*is_new);
      ++made;
      free.push_back(arena);
    }
    if (!arena->fit(bytes + bytes / kSlackShare)) return nullptr;
    free.pop_back();
    lent.push_back(arena.get());
    in_preparation = arena.get();
    return arena;
  }

  // The functions below are called under the lock.

  Result<std::shared_ptr<Arena>> make_arena() const {
    return shares ? Arena::make_shared(limits) : Arena::make(limits);
  }

  // Whether every lent arena is stuck: no arena can return before a hanging call into the storage returns.
  bool is_stuck() const {
    return std::all_of(lent.begin(), lent.end(), [](const Arena* arena) { return arena->is_stuck(); });
  }

  // The free arena with the fewest missing bytes for `bytes`, among equals the most recently used; null if none is
  // free.
  std::shared_ptr<Arena> best_free(std::optional<std::uint64_t> bytes) const {
    std::shared_ptr<Arena> best;
    for (const auto& arena : free) {
      if (!best || !bytes || arena->missing_bytes(*bytes) <= best->missing_bytes(*bytes)) best = arena;
    }
    return best;
  }

  // The bytes to be allocated until `arena` (null: a new arena) has `bytes`, and the lent arenas have their promised
  // bytes.
  std::uint64_t needed_for(const Arena* arena, std::uint64_t bytes) const {
    const std::uint64_t mine = arena != nullptr ? arena->missing_bytes(bytes) : bytes;
    return mine <= Arena::kSmallBytes ? 0
                                      : mine + sum_of(lent, arena, [](const Arena& a) { return a.missing_bytes(); });
  }

  // kNoSpace if the limits leave less room than `needed`. Frees the memory of the free arenas except `arena` if
  // necessary.
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

  // Whether `bytes` would fit after the return of every lent arena.
  bool may_fit_later(const Arena* arena, std::uint64_t bytes) const {
    const std::uint64_t returning = sum_of(lent, arena, [](const Arena& a) { return a.present_bytes(); });
    const std::uint64_t mine = arena != nullptr ? arena->missing_bytes(bytes) : bytes;
    return !is_stuck() && (mine <= returning || limits->room(mine - returning).bytes >= mine - returning);
  }

  // Waits until an arena returns, at most until `end`. Releases the lock while waiting.
  Result<void> await_return(std::unique_lock<std::mutex>& lock, Clock::time_point end,
                            const std::function<bool()>& interrupted) {
    const std::uint64_t seen = return_count;
    do {
      returned.wait_until(lock, std::min(end, Clock::now() + kPollInterval), [&] { return return_count != seen; });
      if (!interrupted) continue;
      lock.unlock();  // the caller's function may take long and may take locks
      const bool stop_now = interrupted();
      lock.lock();
      if (stop_now) return Error(ErrorCode::kCancelled, "interrupted while waiting for an earlier save");
    } while (return_count == seen && Clock::now() < end);
    return {};
  }

  // Lends an arena with room for `bytes`. Null: a suitable arena may return later; if the limits leave no room now,
  // `refusal` holds their kNoSpace.
  Result<std::shared_ptr<Arena>> pick(std::optional<std::uint64_t> bytes, std::optional<Error>& refusal) {
    std::shared_ptr<Arena> arena = best_free(bytes);
    if (arena && shares) CAIRN_TRY(arena->share());
    if (!arena && made == generations) {
      if (!is_stuck()) return arena;
      return Error(ErrorCode::kUnavailable,
                   "no free arena: abandoned saves hold all " + std::to_string(generations) +
                       " arenas until their hanging calls into the storage return, or the devices "
                       "end the copies");
    }
    if (bytes) {
      const Result<void> room = expect_room(arena.get(), needed_for(arena.get(), *bytes));
      if (!room && room.error().code() == ErrorCode::kNoSpace && may_fit_later(arena.get(), *bytes)) {
        refusal = room.error();
        return std::shared_ptr<Arena>();
      }
      if (!room) return room.error();
    }
    const bool is_new = !arena;
    if (is_new) {
      CAIRN_TRY_ASSIGN(arena, make_arena());
    }
    if (bytes) CAIRN_TRY(arena->fit(*bytes));
    made += is_new ? 1 : 0;
    std::erase(free, arena);
    lent.push_back(arena.get());
    return arena;
  }

  const std::size_t generations;
  const std::shared_ptr<const os::MemoryLimits> limits;
  const std::chrono::milliseconds look_interval;
  std::mutex mutex;
  std::condition_variable returned;
  std::uint64_t return_count = 0;  // the number of returns so far
  std::size_t made = 0;
  bool shares = false;                    // with a writer process
  std::atomic<bool> is_used{false};       // whether take() was called; set under the lock
  const Arena* in_preparation = nullptr;  // lent by take_to_prepare()
  std::vector<const Arena*> lent;
  std::vector<std::shared_ptr<Arena>> free;  // the most recently used last: its pages are likely still in the caches
};

ArenaPool::ArenaPool(std::size_t generations, std::shared_ptr<const os::MemoryLimits> limits,
                     std::chrono::milliseconds look_interval)
    : shared_(std::make_shared<SharedState>(std::max<std::size_t>(generations, 1), std::move(limits), look_interval)) {}

// The deleter of the borrowers' pointer owns the arena; the last borrower's release returns the arena to the pool.
std::shared_ptr<Arena> ArenaPool::lend(std::shared_ptr<Arena> arena) const {
  Arena* const lent = arena.get();
  return std::shared_ptr<Arena>(
      lent, [shared = shared_, arena = std::move(arena)](Arena*) mutable { shared->put_back(std::move(arena)); });
}

Result<std::shared_ptr<Arena>> ArenaPool::take(std::optional<std::uint64_t> bytes,
                                               const std::function<bool()>& interrupted,
                                               std::optional<std::chrono::milliseconds> memory_wait_max) {
  CAIRN_TRY_ASSIGN(std::shared_ptr<Arena> arena, shared_->take(bytes, interrupted, MemoryWait(memory_wait_max)));
  return lend(std::move(arena));
}

Result<void> ArenaPool::fit(std::shared_ptr<Arena>& arena, std::uint64_t bytes,
                            const std::function<bool()>& interrupted,
                            std::optional<std::chrono::milliseconds> memory_wait_max) {
  MemoryWait wait(memory_wait_max);
  {
    const std::lock_guard lock(shared_->mutex);
    Result<void> room = shared_->expect_room(arena.get(), shared_->needed_for(arena.get(), bytes));
    if (room) return arena->fit(bytes);
    if (room.error().code() != ErrorCode::kNoSpace) return room;
    wait.note(std::move(room).error());
  }
  arena.reset();  // the memory of the returned arena may suffice
  CAIRN_TRY_ASSIGN(std::shared_ptr<Arena> other, shared_->take(bytes, interrupted, std::move(wait)));
  arena = lend(std::move(other));
  return {};
}

void ArenaPool::share_with_processes() {
  const std::lock_guard lock(shared_->mutex);
  shared_->shares = true;
}

std::shared_ptr<Arena> ArenaPool::take_to_prepare(std::uint64_t bytes) {
  std::shared_ptr<Arena> arena = shared_->take_to_prepare(bytes);
  return arena ? lend(std::move(arena)) : nullptr;
}

bool ArenaPool::is_used() const noexcept { return shared_->is_used; }

void ArenaPool::free_prepared() {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->is_used) return;
  for (const auto& arena : shared_->free) (void)arena->fit(0);
}

std::uint64_t ArenaPool::room(std::uint64_t enough) const {
  return shared_->limits ? shared_->limits->room(enough).bytes : std::numeric_limits<std::uint64_t>::max();
}

std::uint64_t ArenaPool::free_bytes() const {
  const std::lock_guard lock(shared_->mutex);
  return sum_of(shared_->free, nullptr, [](const Arena& a) { return a.present_bytes(); });
}

std::size_t ArenaPool::arena_count() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->made;
}

}  // namespace cairn::staging
