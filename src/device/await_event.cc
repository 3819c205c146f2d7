#include "device/await_event.h"

#include <algorithm>
#include <string>
#include <thread>

namespace cairn::device {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kShortest{5};
constexpr std::chrono::microseconds kLongest{1000};
constexpr int kGrowthShare = 16;  // an interval is this part of the time waited so far
constexpr std::chrono::milliseconds kInterruptInterval{20};

}  // namespace

Result<void> await(const Event& event, const std::function<bool()>& interrupted) {
  const Clock::time_point begin = Clock::now();
  Clock::time_point next_question = begin;
  for (;;) {
    CAIRN_TRY_ASSIGN(const bool is_done, event.is_done());
    if (is_done) return {};
    const Clock::time_point now = Clock::now();
    if (interrupted && now >= next_question) {
      if (interrupted()) return Error(ErrorCode::kCancelled, "interrupted by the caller");
      next_question = Clock::now() + kInterruptInterval;
    }
    const auto waited = std::chrono::duration_cast<std::chrono::microseconds>(now - begin);
    std::this_thread::sleep_for(std::clamp(waited / kGrowthShare, kShortest, kLongest));
  }
}

Result<void> await_turn(Stream& stream, const std::function<bool()>& interrupted) {
  CAIRN_TRY_ASSIGN(const Event before, stream.mark());
  return await(before, interrupted);
}

Error stalled(const Stream& stream, std::chrono::milliseconds stall_max) {
  return Error(ErrorCode::kUnavailable, "no copy from " + device_name(stream.driver(), stream.ordinal()) +
                                            " ended for " + std::to_string(stall_max.count()) +
                                            " ms: earlier work on the device does not end");
}

}  // namespace cairn::device
