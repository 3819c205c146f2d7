// Stream copy: moves much memory past the processor's cache, for whoever reads it next is another thread, or the
// device.
//
// Pure. On x86-64 about a third quicker than memcpy, which first reads the lines that it is going to overwrite.
#pragma once

#include <cstddef>
#include <span>

namespace cairn {

// Copies `source` to `target`, of the same size; they don't overlap. All of it is visible to other threads once they
// have synchronised with the caller, as after memcpy.
void stream_copy(std::span<std::byte> target, std::span<const std::byte> source);

}  // namespace cairn
