// ArchiveReader: the records of a torch.save archive by name.
//
// Borrows its source. Not thread-safe. Records are checked against their CRC where they are read whole.
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
  // Fails with kUnsupported if `archive`, which must outlive the reader, is no torch.save archive.
  static Result<ArchiveReader> open(const ByteSource& archive);

  const ByteSource& archive() const { return *archive_; }
  const zip::Directory& directory() const { return directory_; }
  // The whole of a record. Fails with kCorrupt if there is none of that name, or if its CRC is another.
  Result<std::vector<std::byte>> read(std::string_view name) const;
  // Fails like read().
  Result<const zip::DirectoryEntry*> require(std::string_view name) const;
  // Whether the numbers in the storages have the other byte order.
  Result<bool> big_endian() const;

 private:
  ArchiveReader(const ByteSource& archive, zip::Directory directory)
      : archive_(&archive), directory_(std::move(directory)) {}
  const ByteSource* archive_;
  zip::Directory directory_;
};

}  // namespace cairn::torch_file
