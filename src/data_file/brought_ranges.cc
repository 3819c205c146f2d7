#include "data_file/brought_ranges.h"

#include <vector>

#include "core/attempt.h"

namespace cairn::data_file {

BroughtRanges::~BroughtRanges() {
  // After an exception (bad_alloc, most likely) ranges stay in the page cache.
  (void)attempt([this]() -> Result<void> {
    for (const Range& range : ranges_) range.file->drop_cached(range.offset, range.length);
    return {};
  });
}

void BroughtRanges::add(const storage::ReadableFile& file, std::uint64_t offset, std::uint64_t length) {
  std::vector<Range> oldest;
  {
    const std::lock_guard lock(mutex_);
    ranges_.push_back({&file, offset, length});
    bytes_ += length;
    while (bytes_ > bytes_max_ && ranges_.size() > 1) {
      oldest.push_back(ranges_.front());
      bytes_ -= ranges_.front().length;
      ranges_.pop_front();
    }
  }
  for (const Range& range : oldest) range.file->drop_cached(range.offset, range.length);
}

}  // namespace cairn::data_file
