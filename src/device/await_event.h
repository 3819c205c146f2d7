// Waits until the work before an event is done, while the caller can be interrupted.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <functional>

#include "device/stream.h"

namespace cairn::device {

// Asks the driver at short intervals, which grow to a millisecond. kCancelled when `interrupted`, called every few
// milliseconds, returns true: the work goes on then, and its memory must stay. kUnavailable: the driver's error; the
// work has ended then.
Result<void> await(const Event& event, const std::function<bool()>& interrupted = {});

// The error after no copy from the CUDA device has ended for `stall_max`.
Error stalled(std::int32_t ordinal, std::chrono::milliseconds stall_max);

}  // namespace cairn::device
