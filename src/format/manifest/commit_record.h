// CommitRecord: what Cairn puts behind the pickle in `.metadata`: which save this is, and which files make it up.
//
// A value; pure functions. Stock torch stops reading at the end of the pickle and never sees it. docs/format.md has the
// bytes.
#pragma once

#include "core/byte_source.h"

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cairn::manifest {

struct CommitRecord {
  SaveId save_id;
  SaveId job_id;                  // the same for all saves of one job
  std::uint64_t job_start = 0;    // orders jobs: nanoseconds since 1970; 0 in a record of version 1, which lacks it
  std::uint64_t save_number = 0;  // counts the saves of a job
  struct File {
    std::string name;  // relative to the checkpoint's directory
    std::uint64_t size = 0;
    std::uint32_t trailer_checksum = 0;
    friend bool operator==(const File&, const File&) = default;
  };
  std::vector<File> files;
  std::uint64_t pickle_bytes = 0;     // from the start of `.metadata`
  std::uint32_t pickle_checksum = 0;  // CRC-32 of those bytes
  friend bool operator==(const CommitRecord&, const CommitRecord&) = default;
};

// The bytes to append to the pickle.
std::string encode_commit_record(const CommitRecord& record);

// The greatest start of a job. A decoder refuses a later one, so adding 1 to a start that was read never wraps around.
inline constexpr std::uint64_t kJobStartMax = INT64_MAX;

// The record at the end of a whole `.metadata` file; nullopt if it has none (stock torch wrote it). The pickle before
// it is held against its checksum. kCorrupt if either is damaged, kUnsupported if a later version wrote it.
Result<std::optional<CommitRecord>> read_commit_record(std::span<const std::byte> metadata_file);

// The same, but the record alone is read: nothing is said of the pickle.
Result<std::optional<CommitRecord>> read_only_commit_record(const ByteSource& metadata_file);

}  // namespace cairn::manifest
