// ArchiveReader: the records of a torch.save archive by name.
//
// Borrows its source. Not thread-safe. read() checks a record against its CRC.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/byte_source.h"
#include "format/zip/directory.h"

namespace cairn::torch_file {

class ArchiveReader {
 public:
  // Fails with kUnsupported if `archive` is not a torch.save archive. `archive` must outlive the reader.
  static Result<ArchiveReader> open(const ByteSource& archive);

  const ByteSource& archive() const { return *archive_; }
  const zip::Directory& directory() const { return directory_; }
  // The whole record. Fails with kCorrupt if no record has the name, or if the CRC differs.
  Result<std::vector<std::byte>> read(std::string_view name) const;
  // The directory entry of a record. Fails with kCorrupt if no record has the name.
  Result<const zip::DirectoryEntry*> require(std::string_view name) const;
  // Whether the numbers in the storages are in big-endian byte order.
  Result<bool> big_endian() const;

 private:
  ArchiveReader(const ByteSource& archive, zip::Directory directory)
      : archive_(&archive), directory_(std::move(directory)) {}
  const ByteSource* archive_;
  zip::Directory directory_;
};

}  // namespace cairn::torch_file
