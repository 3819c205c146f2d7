// MetadataInPlace: the identity of a directory's `.metadata` at a moment: enough to recognise a change.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <optional>
#include <string>

#include "format/manifest/commit_record.h"
#include "storage/storage.h"

namespace cairn::commit {

struct MetadataInPlace {
  bool present = false;
  std::optional<manifest::CommitRecord> record;  // nullopt if stock torch wrote the file, or if the record is damaged
  // Set only without a record. Size and checksum then identify the `.metadata`. The checksum is 0 with kLeaveUnknown.
  std::uint64_t size = 0;
  std::uint32_t checksum = 0;
  // Of the version that was read, in a storage without a rename; else empty.
  std::string tag = {};

  bool same_as(const MetadataInPlace& other) const;
};

// Whether to identify a `.metadata` without a commit record. kLeaveUnknown: the result must not be compared.
enum class WithoutRecord : std::uint8_t { kIdentify, kLeaveUnknown };

// Reads only the commit record if the file has a record: the pickle is not read. Without a record, kIdentify reads the
// whole file, piece by piece, for its checksum.
Result<MetadataInPlace> read_metadata_in_place(const storage::Storage& storage,
                                               const std::string& name = std::string(kMetadataName),
                                               WithoutRecord without_record = WithoutRecord::kIdentify);

}  // namespace cairn::commit
