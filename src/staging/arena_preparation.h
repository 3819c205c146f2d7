// ArenaPreparation: makes memory present for the first save, beside the program, before the state of the save is known.
//
// 1. The thread takes an arena of the pool, unless a save has taken one before.
// 2. The thread makes the pages present, a small piece at a time, at low priority. It ends early when a save asks for
//    an arena, or when the limits leave too little room. The pages so far stay in the arena.
// 3. The arena returns to the pool. The first save takes it, and allocates only what is missing.
// 4. Until then the thread looks at the limits at intervals. When little room is left, or after `idle_max`, the thread
//    frees the memory.
//
// In a child made by fork there is no thread: the child must not use or destroy the parent's object.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "os/memory_limits.h"
#include "os/priority.h"
#include "staging/arena_pool.h"

namespace cairn::staging {

struct PreparationOptions {
  // The time after which unused memory is freed.
  std::chrono::milliseconds idle_max{std::chrono::minutes(30)};
  std::chrono::milliseconds look_interval{std::chrono::seconds(2)};
  os::Priority priority{};
};

// The room that a preparation of `bytes` leaves to the program: half the size of the arena, and at least 256 MiB.
std::uint64_t room_left_by_preparation(std::uint64_t bytes);

class ArenaPreparation {
 public:
  // Called in the preparing thread: `before` first, `with` when the pages of the arena are present. Both may be empty.
  struct Steps {
    std::function<void()> before;
    std::function<void(const std::shared_ptr<Arena>&)> with;
  };

  // Starts the thread. `pool` outlives the object. kUnavailable without a thread.
  static Result<std::unique_ptr<ArenaPreparation>> start(ArenaPool& pool, std::uint64_t bytes,
                                                         const PreparationOptions& options, Steps steps);
  // Stops and joins the thread. The pages that are present stay in the pool.
  ~ArenaPreparation() = default;
  // Does not wait for the thread.
  void request_stop() noexcept { thread_.request_stop(); }

 private:
  std::jthread thread_;
};

}  // namespace cairn::staging
