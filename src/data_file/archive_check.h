// Archive check: holds the records of a zip against their checksums, in pieces, whatever their size.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <functional>

#include "core/byte_source.h"

namespace cairn::data_file {

struct ArchiveCoverage {
  std::uint64_t bytes_checked = 0;    // of records that carry a checksum
  std::uint64_t bytes_unchecked = 0;  // everything else in the archive
};

// kCorrupt, with the offset from the archive's start, at the first record that differs. Memory: one piece.
Result<ArchiveCoverage> check_archive(const ByteSource& archive);

}  // namespace cairn::data_file
