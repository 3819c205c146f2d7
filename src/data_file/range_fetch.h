// Range fetch: bytes of a file in a buffer, by whichever way is faster: the page cache if they are in it, past it if
// not.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "os/page_buffer.h"
#include "storage/storage.h"

namespace cairn::data_file {

// What a buffer needs beyond the range, for the alignment of both of its ends.
inline constexpr std::uint64_t kFetchMarginBytes = 2 * os::kPageBytes;

inline bool better_from_cache(const storage::ReadableFile& file, std::uint64_t begin, std::uint64_t length,
                              bool direct_io) {
  return !direct_io || length < os::kPageBytes || file.is_cached(begin, length) || !file.direct_alignment();
}

// The bytes [begin, begin + length), somewhere in `buffer`, which is larger than that by the margin.
Result<std::span<std::byte>> fetch_range(const storage::ReadableFile& file, std::uint64_t begin, std::uint64_t length,
                                         bool from_cache, os::PageBuffer& buffer);

}  // namespace cairn::data_file
