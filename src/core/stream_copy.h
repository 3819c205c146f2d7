// Stream copy: copies large memory past the processor's cache, for data that is next read by a second thread or a
// device.
//
// Pure. On x86-64 about a third faster than memcpy, which first reads the target's cache lines.
#pragma once

#include <cstddef>
#include <span>

namespace cairn {

// Copies `source` to `target`, of equal size and without overlap. The bytes become visible as after memcpy: to every
// thread that has synchronised with the caller.
void stream_copy(std::span<std::byte> target, std::span<const std::byte> source);

}  // namespace cairn
