#include "staging/arena_preparation.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <utility>

#include "os/start_thread.h"

namespace cairn::staging {
namespace {

// A save waits for at most one piece. The kernel zeroes a piece in about a millisecond.
constexpr std::uint64_t kPieceBytes = std::uint64_t{2} << 20;
// The bytes taken between two checks of the limits. Several ranks of a node prepare at a time.
constexpr std::uint64_t kBetweenChecks = std::uint64_t{32} << 20;
constexpr std::uint64_t kRoomLeftMin = std::uint64_t{256} << 20;

class Preparing {
 public:
  Preparing(ArenaPool& pool, std::uint64_t bytes, const PreparationOptions& options, ArenaPreparation::Steps steps)
      : pool_(pool), bytes_(bytes), options_(options), steps_(std::move(steps)) {}

  void run(const std::stop_token& stop) {
    if (is_over(stop)) return;
    if (steps_.before) steps_.before();  // first: a process inherits the niceness of the thread that starts it
    os::set_priority(options_.priority);
    populate(stop);
    watch(stop);
  }

 private:
  bool is_over(const std::stop_token& stop) const { return stop.stop_requested() || pool_.is_used(); }
  bool leaves_room(std::uint64_t further) const {
    const std::uint64_t enough = further + room_left_by_preparation(bytes_);
    return pool_.room(enough) >= enough;
  }

  // Steps 1 to 3.
  void populate(const std::stop_token& stop) {
    if (bytes_ <= Arena::kSmallBytes || !leaves_room(kBetweenChecks)) return;
    const std::shared_ptr<Arena> arena = pool_.take_to_prepare(bytes_);
    if (!arena) return;
    const std::uint64_t end = std::min<std::uint64_t>(bytes_, arena->bytes().size());
    for (std::uint64_t done = 0; done < end && !is_over(stop);) {
      if (done % kBetweenChecks == 0 && !leaves_room(kBetweenChecks)) return;
      const std::uint64_t piece = std::min(kPieceBytes, end - done);
      if (!arena->make_present(done, piece, os::PageSize::kHuge)) return;
      done += piece;
      arena->note_present(done);
    }
    if (steps_.with && !is_over(stop)) steps_.with(arena);
  }

  // Step 4, also for memory that an earlier preparation has left.
  void watch(const std::stop_token& stop) {
    const auto end = std::chrono::steady_clock::now() + options_.idle_max;
    std::mutex mutex;
    std::condition_variable_any stopped;
    while (!is_over(stop) && pool_.free_bytes() > Arena::kSmallBytes) {
      std::unique_lock lock(mutex);
      const auto look = std::min(end, std::chrono::steady_clock::now() + options_.look_interval);
      (void)stopped.wait_until(lock, stop, look, [] { return false; });
      if (is_over(stop)) return;
      const std::uint64_t least = room_left_by_preparation(pool_.free_bytes()) / 2;
      if (std::chrono::steady_clock::now() < end && pool_.room(least) >= least) continue;
      pool_.free_prepared();
      return;
    }
  }

  ArenaPool& pool_;
  const std::uint64_t bytes_;
  const PreparationOptions options_;
  const ArenaPreparation::Steps steps_;
};

}  // namespace

std::uint64_t room_left_by_preparation(std::uint64_t bytes) { return std::max(kRoomLeftMin, bytes / 2); }

Result<std::unique_ptr<ArenaPreparation>> ArenaPreparation::start(ArenaPool& pool, std::uint64_t bytes,
                                                                  const PreparationOptions& options, Steps steps) {
  auto preparation = std::make_unique<ArenaPreparation>();
  auto work = [preparing = std::make_shared<Preparing>(pool, bytes, options, std::move(steps))](
                  const std::stop_token& stop) { preparing->run(stop); };
  CAIRN_TRY_ASSIGN(preparation->thread_, os::start_thread<std::jthread>("to prepare memory", std::move(work)));
  return preparation;
}

}  // namespace cairn::staging
