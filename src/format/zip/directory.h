// Directory: what a stored zip archive holds and where, read from its end.
//
// Values and pure functions, safe from any thread. Reads archives as torch (any version), Python's zipfile and Cairn
// write them: zip64 or not, one level of prefix, entries that are stored and not encrypted. Nothing is trusted: all
// that is returned lies inside the archive, and no byte is in two records. Errors are kCorrupt for damage and
// kUnsupported for what is no zip archive or needs more than the above.
#pragma once

#include "core/byte_source.h"

#include <cairn/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::zip {

struct DirectoryEntry {
  std::string name;  // without the prefix
  // Nullopt: the writer did not compute it (torch stores 0 then).
  std::optional<std::uint32_t> crc;
  std::uint64_t size = 0;
  std::uint64_t local_header_offset = 0;
  std::uint16_t method = 0;  // 0: stored
  std::uint16_t flags = 0;
  std::uint16_t full_name_bytes = 0;  // of the name with its prefix
  std::uint64_t end_max = 0;          // where the next record or the directory begins: the bytes end before it
};

struct Directory {
  std::string prefix;                   // "archive/", taken from the first entry
  std::vector<DirectoryEntry> entries;  // in the directory's order, no name twice
  std::uint64_t offset = 0;             // of the first directory entry
  std::uint64_t bytes = 0;              // of the entries; the end records follow somewhere behind them
  std::uint64_t end_offset = 0;         // of the end record, the zip64 ones not counted
  std::optional<std::uint64_t> zip64_end_offset;
  std::uint64_t zip64_locator_offset = 0;  // if there is a zip64 end record

  // Null if there is none.
  const DirectoryEntry* find(std::string_view name) const;
  // Prepares find(). Fails with kCorrupt on a name used twice.
  Result<void> index();

 private:
  std::vector<std::uint32_t> by_name_;  // indices of entries; empty if there are few
};

// Reads the directory with one read of the archive's end, or two if the directory is larger than a few KiB.
Result<Directory> read_directory(const ByteSource& archive);

// Where the entry's bytes begin, from its local header, which is checked against the directory. Fails with kUnsupported
// if they are compressed or encrypted.
Result<std::uint64_t> payload_offset(const ByteSource& archive, const DirectoryEntry& entry);

}  // namespace cairn::zip
