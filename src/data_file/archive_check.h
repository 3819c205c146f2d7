// Archive check: compares the records of a zip archive with their checksums, in pieces, whatever the records' size.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <functional>

#include "core/byte_source.h"

namespace cairn::data_file {

struct ArchiveCoverage {
  std::uint64_t bytes_checked = 0;    // of records with a checksum
  std::uint64_t bytes_unchecked = 0;  // all remaining bytes of the archive
};

// Fails with kCorrupt at the first record whose checksum differs, with the offset from the archive's start. Memory: one
// piece of 1 MiB.
Result<ArchiveCoverage> check_archive(const ByteSource& archive);

}  // namespace cairn::data_file
