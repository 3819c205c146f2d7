// Range fetch: reads a range of a file into a buffer by the faster way: through the page cache if the cache holds the
// range, by direct I/O otherwise.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "os/page_buffer.h"
#include "storage/storage.h"

namespace cairn::data_file {

// The bytes that a buffer needs beyond the range, to align both ends of the range.
inline constexpr std::uint64_t kFetchMarginBytes = 2 * os::kPageBytes;

inline bool better_from_cache(const storage::ReadableFile& file, std::uint64_t begin, std::uint64_t length,
                              bool direct_io) {
  return !direct_io || length < os::kPageBytes || file.is_cached(begin, length) || !file.direct_alignment();
}

// Reads the bytes [begin, begin + length) and returns their place in `buffer`. `buffer` has at least length +
// kFetchMarginBytes bytes.
Result<std::span<std::byte>> fetch_range(const storage::ReadableFile& file, std::uint64_t begin, std::uint64_t length,
                                         bool from_cache, os::PageBuffer& buffer);

}  // namespace cairn::data_file
