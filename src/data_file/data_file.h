// DataFile: a data file open for reading, with its trailer if Cairn wrote it; knows where each item's bytes lie.
//
// Thread-safe once open.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "format/manifest/commit_record.h"
#include "format/manifest/trailer.h"
#include "storage/storage.h"

namespace cairn::data_file {

// The elements of one saved chunk, as they lie in a file.
struct StoredTensor {
  DType dtype = DType::kFloat32;
  Extents sizes;
  Extents strides;                  // in elements
  std::uint64_t record_offset = 0;  // bytes, in the file: where the checksums begin to count
  std::uint64_t record_bytes = 0;
  std::uint64_t first_element = 0;            // elements, from record_offset
  std::span<const std::uint32_t> chunk_crcs;  // of each 64 KiB of the record, if Cairn wrote it
  std::optional<std::uint32_t> record_crc;    // of the whole record, if stock torch did and took it
  // What must be done to the elements as they are stored; only stock files ever ask for it.
  bool big_endian = false;
  bool conjugate = false;
  bool negative = false;
  bool is_final() const { return !big_endian && !conjugate && !negative; }
};

class DataFile {
 public:
  // Opens the file and reads its trailer. With a commit record entry (`recorded`) the file must be the one that it
  // names: kCorrupt if size, save id or trailer differ, as they do for a file of another step.
  static Result<std::unique_ptr<DataFile>> open(const storage::Storage& storage, const std::string& name,
                                                bool follow_links, const manifest::CommitRecord::File* recorded,
                                                const std::optional<SaveId>& save_id);

  const std::string& name() const { return name_; }
  const storage::ReadableFile& bytes() const { return *bytes_; }
  const std::optional<manifest::Trailer>& trailer() const { return trailer_; }

  // The saved chunk `chunk` of `tensor`. kCorrupt if the file says otherwise than the catalog; kUnsupported if the item
  // is not a plain strided tensor.
  Result<StoredTensor> tensor(const CatalogTensor& tensor, std::size_t chunk) const;

  // Whether the value lies where the catalog says: kCorrupt if the trailer says otherwise. Without a trailer nobody
  // knows.
  Result<void> check_value(const CatalogValue& value) const;

  // A whole item as stored. `checked` says whether a checksum of Cairn's vouched for it; without one the caller checks.
  struct Item {
    std::string bytes;
    bool checked = false;
  };
  Result<Item> read_item(const ItemLocation& location, bool verify) const;

 private:
  DataFile(std::string name, std::unique_ptr<storage::ReadableFile> bytes)
      : name_(std::move(name)), bytes_(std::move(bytes)) {}
  Result<StoredTensor> tensor_of_cairn(const CatalogTensor& tensor, std::size_t chunk) const;
  Result<StoredTensor> tensor_of_stock(const CatalogTensor& tensor, std::size_t chunk) const;

  std::string name_;
  std::unique_ptr<storage::ReadableFile> bytes_;
  std::optional<manifest::Trailer> trailer_;
};

}  // namespace cairn::data_file
