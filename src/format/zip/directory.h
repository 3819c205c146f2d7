// Directory: the records of a stored zip archive and the records' places, read from the archive's end.
//
// Values and pure functions, safe from any thread. Reads archives of torch (any version), Python's zipfile and Cairn:
// with or without zip64, with a prefix of one level, with entries that are stored and not encrypted. Nothing in the
// archive is trusted: every returned range lies inside the archive, and no byte belongs to two records. Errors are
// kCorrupt for damage, and kUnsupported for all files beyond the features above.
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
  // Nullopt if the writer did not compute the CRC (torch then stores 0).
  std::optional<std::uint32_t> crc;
  std::uint64_t size = 0;
  std::uint64_t local_header_offset = 0;
  std::uint16_t method = 0;  // 0: stored
  std::uint16_t flags = 0;
  std::uint16_t full_name_bytes = 0;  // of the name with its prefix
  // The begin of the next record or of the directory: the entry's bytes end before end_max.
  std::uint64_t end_max = 0;
};

struct Directory {
  std::string prefix;                   // "archive/", taken from the first entry
  std::vector<DirectoryEntry> entries;  // in the directory's order; names are unique
  std::uint64_t offset = 0;             // of the first directory entry
  std::uint64_t bytes = 0;              // of the entries; the end records follow somewhere behind the entries
  std::uint64_t end_offset = 0;         // of the end record, not of the zip64 end record
  std::optional<std::uint64_t> zip64_end_offset;
  std::uint64_t zip64_locator_offset = 0;  // valid if zip64_end_offset is set
  // Why torch.load refuses the archive or loses a record, from fields that no other reader needs. The first reason.
  std::optional<Error> torch_refusal;

  // Null if no entry has the name.
  const DirectoryEntry* find(std::string_view name) const;
  // Prepares find(). Fails with kCorrupt if two entries have one name.
  Result<void> index();

 private:
  std::vector<std::uint32_t> by_name_;  // indices of entries; empty if there are few entries
};

// Reads the directory with a single read of the archive's end. Takes another read if the directory is larger than a few
// KiB, and another if the archive ends with a comment of more than 4 KiB.
Result<Directory> read_directory(const ByteSource& archive);
// Whether the end of an archive is there: false for an archive that was cut.
Result<bool> has_end_record(const ByteSource& archive);

// The offset of the entry's bytes, from the entry's local header, which is checked against the directory. Fails with
// kUnsupported if the bytes are compressed or encrypted.
Result<std::uint64_t> payload_offset(const ByteSource& archive, const DirectoryEntry& entry);

}  // namespace cairn::zip
