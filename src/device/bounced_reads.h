// Bounced reads: parts of tensors of a device are read into memory that is not registered with the driver, through one
// borrowed buffer (bounce_buffers.h) at a time.
#pragma once

#include <cairn/result.h>
#include <cairn/tensor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "device/links.h"
#include "device/stream.h"

namespace cairn::device {

// The bytes of a tensor from `begin` on, in row-major order. `begin` and the size of `target` are multiples of the
// element size, and within the tensor.
struct BouncedPart {
  const TensorView* tensor = nullptr;
  std::uint64_t begin = 0;
  std::span<std::byte> target;
  std::string_view key = {};  // of the tensor, for errors
};

// Fills the targets of the parts, whose tensors are all on the device of `link`. Several threads may share `stream`.
// kCancelled when `interrupted`, called every few milliseconds, returns true; kUnavailable: the driver's error, or a
// buffer's copies do not end within `stall_max`. The error of the driver or of a stall names the key. After an error
// copies may be pending, into a buffer that stays mapped until the program ends; no target is written later.
Result<void> read_by_bounce(Link& link, Stream& stream, std::span<const BouncedPart> parts,
                            const std::function<bool()>& interrupted, std::chrono::milliseconds stall_max);

}  // namespace cairn::device
