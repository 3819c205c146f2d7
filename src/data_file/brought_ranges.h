// BroughtRanges: the ranges of files that this process has brought into the page cache for other processes. The ranges
// leave the page cache on destruction; beyond a number of bytes the oldest ranges leave earlier.
//
// A process that still needs a dropped range reads the range from the storage. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>

#include "storage/storage.h"

namespace cairn::data_file {

class BroughtRanges {
 public:
  // Keeps at most `bytes_max` in the page cache, and always the newest range.
  explicit BroughtRanges(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}
  ~BroughtRanges();
  BroughtRanges(const BroughtRanges&) = delete;
  BroughtRanges& operator=(const BroughtRanges&) = delete;

  // `file` outlives the object.
  void add(const storage::ReadableFile& file, std::uint64_t offset, std::uint64_t length);

 private:
  struct Range {
    const storage::ReadableFile* file;
    std::uint64_t offset;
    std::uint64_t length;
  };

  const std::uint64_t bytes_max_;
  std::mutex mutex_;
  std::deque<Range> ranges_;  // oldest first
  std::uint64_t bytes_ = 0;   // of the ranges
};

}  // namespace cairn::data_file
