// DataFile: a data file open for reading, with its trailer if Cairn wrote the file. Finds the bytes of each item.
//
// Thread-safe once open.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/checksum.h"
#include "core/stored_tensor.h"
#include "format/manifest/commit_record.h"
#include "format/manifest/trailer.h"
#include "format/safetensors/header.h"
#include "format/torch_file/state_file.h"
#include "storage/storage.h"

namespace cairn::data_file {

class DataFile {
 public:
  // Opens the file and reads its trailer. If `recorded`, the file's entry in the commit record, is given, the file must
  // match the entry and `save_id`: kCorrupt if size, save id or trailer checksum differ, as in a file of another step.
  static Result<std::unique_ptr<DataFile>> open(const storage::Storage& storage, const std::string& name,
                                                bool follow_links, const manifest::CommitRecord::File* recorded,
                                                const std::optional<SaveId>& save_id);

  // A safetensors file, whose header names each tensor and has no checksums.
  struct OpenedSafetensors;
  static Result<OpenedSafetensors> open_safetensors(const storage::Storage& storage, const std::string& name,
                                                    bool follow_links);

  // A file of torch.save that holds a state dict.
  static Result<std::unique_ptr<DataFile>> open_torch_save(const storage::Storage& storage, const std::string& name);
  // A file of torch.save that holds one item of a state (StateFile::open_item()). Follows no link.
  static Result<std::unique_ptr<DataFile>> open_torch_item(const storage::Storage& storage, const std::string& name,
                                                           const std::string& item);
  // A file without a format that this class knows. Follows no link.
  static Result<std::unique_ptr<DataFile>> open_bytes(const storage::Storage& storage, const std::string& name);
  // The content of a file of open_torch_save() or open_torch_item(); null for all other files.
  const torch_file::StateFile* state_file() const { return state_file_.get(); }

  const std::string& name() const { return name_; }
  const storage::ReadableFile& bytes() const { return *bytes_; }
  const std::optional<manifest::Trailer>& trailer() const { return trailer_; }
  // Of a safetensors file with checksums: the bytes of the header, which matched the header's own checksum when the
  // file was opened. 0 otherwise.
  std::uint64_t checked_header_bytes() const { return safetensors_checksums_.data_offset; }

  // A chunk of a tensor that is a part of the tensor in the file.
  struct Part {
    Box box;                          // of the chunk
    std::uint64_t first_element = 0;  // of the part, from the first element of the tensor in the file
    Extents strides;                  // of the tensor in the file
  };
  // By key, and by the offsets of the chunk.
  using Parts = std::map<std::string, std::map<std::vector<std::int64_t>, Part>, std::less<>>;
  // From now on tensor() knows the part of a tensor of the file. Before the file is used by a second thread. The caller
  // has checked that the part lies in the tensor.
  void add_part(const std::string& fqn, Part part);
  bool has_parts(std::string_view fqn) const { return parts_ && parts_->contains(fqn); }
  // The parts, for a later DataFile of the same file; null if there are none.
  const std::shared_ptr<Parts>& parts() const { return parts_; }
  void set_parts(std::shared_ptr<Parts> parts) { parts_ = std::move(parts); }

  // The saved chunk `chunk` of `tensor`. kCorrupt if the file contradicts the catalog; kUnsupported if the item is not
  // a plain strided tensor.
  Result<StoredTensor> tensor(const CatalogTensor& tensor, std::size_t chunk) const;

  // Checks that the trailer has the value at the catalog's location: kCorrupt otherwise. A file without a trailer
  // passes unchecked.
  Result<void> check_value(const CatalogValue& value) const;

  // A whole stored item. `checked`: the item's bytes matched a checksum of the trailer. If false, the caller checks the
  // item.
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
  Result<StoredTensor> tensor_of_safetensors(const CatalogTensor& tensor, std::size_t chunk) const;
  void take_checksums(safetensors::Header& header);
  // The checksums of the tensor at `location` of a safetensors file; empty if the file has none.
  std::span<const std::uint32_t> safetensors_crcs(const ItemLocation& location) const;
  // Compares the bytes of an item with the checksums of its blocks.
  Result<void> check_blocks(const ItemLocation& location, std::string_view bytes, std::span<const std::uint32_t> crcs,
                            std::uint64_t block_bytes) const;
  Result<StoredTensor> tensor_of_torch_save(const CatalogTensor& tensor, std::size_t chunk) const;
  // The part that `box` is of the tensor in the file; null if the box is the whole tensor.
  const Part* part_of(std::string_view fqn, const Box& box) const;

  std::string name_;
  std::unique_ptr<storage::ReadableFile> bytes_;
  std::optional<manifest::Trailer> trailer_;
  bool is_safetensors_ = false;

  // Empty if the file has no checksums.
  struct SafetensorsChecksums {
    // The first checksum of a tensor with elements; the tensor begins at `offset` of the file.
    struct Place {
      std::uint64_t offset;
      std::size_t first;
    };
    std::uint64_t data_offset = 0;
    std::uint64_t block_bytes = kChecksumBlockBytes;
    std::vector<std::uint32_t> crcs;
    std::vector<Place> places;  // ascending
  };
  SafetensorsChecksums safetensors_checksums_;
  std::unique_ptr<torch_file::StateFile> state_file_;  // reads `bytes_`
  std::shared_ptr<Parts> parts_;  // owned by the DataFiles of one file, and by the opener; null without parts
};

struct DataFile::OpenedSafetensors {
  std::unique_ptr<DataFile> file;
  safetensors::Header header;
};

}  // namespace cairn::data_file
