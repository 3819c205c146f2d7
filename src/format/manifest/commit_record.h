// CommitRecord: the bytes that Cairn appends to the pickle in `.metadata`: the identity of the save, the list of its
// files and, after a save by several ranks, its plan.
//
// A value; pure functions. Stock torch stops reading at the end of the pickle and ignores the record. docs/format.md
// has the bytes.
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

#include "format/manifest/recorded_plan.h"

namespace cairn::manifest {

struct CommitRecord {
  SaveId save_id;
  SaveId job_id;  // equal for all saves of a job; 0 for a copy by a conversion
  // Orders jobs: nanoseconds since 1970. 0 in a record of version 1, which has no such field. An exact copy has the
  // start and the number of its source, if the source has a commit record; any other copy has 0 for both.
  std::uint64_t job_start = 0;
  std::uint64_t save_number = 0;  // counts the saves of a job
  struct File {
    std::string name;  // relative to the checkpoint's directory
    std::uint64_t size = 0;
    std::uint32_t trailer_checksum = 0;
    friend bool operator==(const File&, const File&) = default;
  };
  std::vector<File> files;
  RecordedPlan plan;                 // without ranks in the records of versions 1 and 2, which have no such field
  std::uint64_t front_bytes = 0;     // from the start of `.metadata`
  std::uint32_t front_checksum = 0;  // CRC-32 of the first front_bytes bytes

  bool is_copy() const { return job_id == SaveId(); }
  friend bool operator==(const CommitRecord&, const CommitRecord&) = default;
};

// The bytes to append to the pickle.
std::string encode_commit_record(const CommitRecord& record);

// The greatest start of a job. The decoder refuses a later start: adding 1 to a decoded start never wraps around.
inline constexpr std::uint64_t kJobStartMax = INT64_MAX;

// The record at the end of a whole `.metadata` file, and a check of the pickle's CRC. Nullopt if the file has no
// record: stock torch wrote the file. kCorrupt if the record or the pickle is damaged, kUnsupported if a later version
// of Cairn wrote the record.
Result<std::optional<CommitRecord>> read_commit_record(std::span<const std::byte> metadata_file);

// Like read_commit_record(), but reads only the record: the pickle is not checked.
Result<std::optional<CommitRecord>> read_only_commit_record(const ByteSource& metadata_file);

}  // namespace cairn::manifest
