#include "data_file/range_fetch.h"

#include <cassert>

#include "core/checked.h"

namespace cairn::data_file {

Result<std::span<std::byte>> fetch_range(const storage::ReadableFile& file, std::uint64_t begin, std::uint64_t length,
                                         bool from_cache, os::PageBuffer& buffer) {
  assert(length + kFetchMarginBytes <= buffer.size());
  if (from_cache) {
    const std::span<std::byte> bytes = buffer.span().first(length);
    CAIRN_TRY(file.read_at(begin, bytes));
    return bytes;
  }
  const std::uint64_t from = align_down(begin, os::kPageBytes);
  const std::uint64_t to = align_up(begin + length, os::kPageBytes);
  CAIRN_TRY(file.read_direct_at(from, buffer.span().first(to - from)));
  return buffer.span().subspan(begin - from, length);
}

}  // namespace cairn::data_file
