// Waits until the work before an event is done, while the caller can be interrupted.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <functional>

#include "device/stream.h"

namespace cairn::device {

// Asks the driver at short intervals, which grow to a millisecond. kCancelled when `interrupted`, called every few
// milliseconds, returns true. kUnavailable: the driver's error. After either error the work may go on, and its memory
// must stay.
Result<void> await(const Event& event, const std::function<bool()>& interrupted = {});

// Returns when the stream holds no work; errors as for await(). For memory that is not registered: a call that queues a
// copy there may last until the stream reaches the copy, and such a call can't be interrupted.
Result<void> await_turn(Stream& stream, const std::function<bool()>& interrupted = {});

// The error after no copy from the stream's device has ended for `stall_max`.
Error stalled(const Stream& stream, std::chrono::milliseconds stall_max);

}  // namespace cairn::device
