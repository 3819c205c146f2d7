#include "storage/bucket/retry_pace.h"

#include <thread>

namespace cairn::storage {

bool pause_unless_stopped(std::chrono::milliseconds time, const os::StopFlag* stop) {
  constexpr std::chrono::milliseconds kLook{50};
  const auto end = RetryPace::Clock::now() + time;
  for (;;) {
    if (stop != nullptr && stop->is_set()) return true;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - RetryPace::Clock::now());
    if (left.count() <= 0) return false;
    std::this_thread::sleep_for(std::min(left, kLook));
  }
}

}  // namespace cairn::storage
