// Backoff: the pauses between two looks at a storage: short at first, longer while nothing changes.
//
// One thread at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace cairn::storage {

class Backoff {
 public:
  void pause() {
    std::this_thread::sleep_for(next_);
    next_ = std::min(next_ * 2, kLongest);
  }
  void reset() { next_ = kShortest; }

 private:
  static constexpr std::chrono::milliseconds kShortest{1};
  static constexpr std::chrono::milliseconds kLongest{50};
  std::chrono::milliseconds next_ = kShortest;
};

}  // namespace cairn::storage
