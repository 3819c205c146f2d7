#include "core/stream_copy.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace cairn {
namespace {

// Below this size, copying through the caches is faster.
constexpr std::size_t kStreamedBytesMin = 256 * 1024;
constexpr std::size_t kLineBytes = 64;

#if defined(__SSE2__)
// Copies whole lines to an aligned target.
void stream_lines(std::byte* target, const std::byte* source, std::size_t lines) {
  constexpr std::size_t kParts = kLineBytes / sizeof(__m128i);
  for (; lines != 0; --lines, target += kLineBytes, source += kLineBytes) {
    __m128i parts[kParts];
    for (std::size_t i = 0; i < kParts; ++i) {
      parts[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source) + i);
    }
    for (std::size_t i = 0; i < kParts; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(target) + i, parts[i]);
  }
}
#else
void stream_lines(std::byte* target, const std::byte* source, std::size_t lines) {
  std::memcpy(target, source, lines * kLineBytes);
}
#endif

}  // namespace

void stream_copy(std::span<std::byte> target, std::span<const std::byte> source) {
  assert(target.size() == source.size());
  if (source.size() < kStreamedBytesMin) {
    if (!source.empty()) std::memcpy(target.data(), source.data(), source.size());
    return;
  }
  stream_piece(target, source);
  finish_streaming();
}

void stream_piece(std::span<std::byte> target, std::span<const std::byte> source) {
  assert(target.size() == source.size());
  if (source.empty()) return;
  const std::size_t past_line = reinterpret_cast<std::uintptr_t>(target.data()) % kLineBytes;
  const std::size_t head = std::min(source.size(), (kLineBytes - past_line) % kLineBytes);
  const std::size_t lines = (source.size() - head) / kLineBytes;
  const std::size_t tail = head + lines * kLineBytes;
  std::memcpy(target.data(), source.data(), head);
  stream_lines(target.data() + head, source.data() + head, lines);
  std::memcpy(target.data() + tail, source.data() + tail, source.size() - tail);
}

void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace cairn
