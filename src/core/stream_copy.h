// Stream copy: copies large memory past the processor's cache, for data that is next read by a second thread or a
// device.
//
// Pure. On x86-64 about a third faster than memcpy, which first reads the target's cache lines.
#pragma once

#include <cstddef>
#include <span>

namespace cairn {

// Copies `source` to `target`, of equal size and without overlap. Sizes below 256 KiB are copied through the cache. The
// bytes become visible as after memcpy: to every thread that has synchronised with the caller.
void stream_copy(std::span<std::byte> target, std::span<const std::byte> source);

// As stream_copy, for a caller that copies a large memory in small pieces: every size goes past the cache. The bytes
// become visible to devices and to synchronised threads after finish_streaming(), called once after the last piece.
void stream_piece(std::span<std::byte> target, std::span<const std::byte> source);
void finish_streaming();

}  // namespace cairn
