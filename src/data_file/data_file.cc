#include "data_file/data_file.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "core/byte_source.h"
#include "core/checked.h"
#include "core/checksum.h"
#include "core/lfs_pointer.h"
#include "format/torch_file/tensor_reader.h"

namespace cairn::data_file {
namespace {

std::string describe(DType dtype, const Extents& sizes) { return std::string(name_of(dtype)) + " " + to_string(sizes); }

Error differs(std::string_view what, const std::string& expected, const std::string& actual) {
  return Error(ErrorCode::kCorrupt, std::string(what)).expected(expected).actual(actual);
}

Result<void> check_identity(const storage::ReadableFile& bytes, const std::optional<manifest::Trailer>& trailer,
                            const manifest::CommitRecord::File& recorded, const std::optional<SaveId>& save_id) {
  if (bytes.size() != recorded.size) {
    return differs("the size of the data file differs from the commit record", std::to_string(recorded.size) + " bytes",
                   std::to_string(bytes.size()) + " bytes");
  }
  if (!trailer)
    return Error(ErrorCode::kCorrupt, "the trailer of the data file is missing").expected("a trailer").actual("none");
  if (save_id && trailer->save_id() != *save_id) {
    return differs("the save id of the data file differs from the commit record", "save " + to_hex(*save_id),
                   "save " + to_hex(trailer->save_id()));
  }
  if (trailer->checksum() != recorded.trailer_checksum) {
    return differs("the trailer of the data file differs from the commit record",
                   "trailer " + crc_text(recorded.trailer_checksum), "trailer " + crc_text(trailer->checksum()));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<DataFile>> DataFile::open(const storage::Storage& storage, const std::string& name,
                                                 bool follow_links, const manifest::CommitRecord::File* recorded,
                                                 const std::optional<SaveId>& save_id) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<storage::ReadableFile> bytes, storage.open(name, follow_links));
  if (std::optional<Error> pointer = lfs_pointer_error(*bytes)) return std::move(*pointer).file(name);
  std::unique_ptr<DataFile> file(new DataFile(name, std::move(bytes)));
  auto trailer = manifest::read_trailer(*file->bytes_);
  if (!trailer) return std::move(trailer).error().file(name);
  file->trailer_ = std::move(*trailer);
  if (recorded != nullptr) {
    if (auto checked = check_identity(*file->bytes_, file->trailer_, *recorded, save_id); !checked) {
      return std::move(checked).error().file(name);
    }
  }
  return file;
}

Result<DataFile::OpenedSafetensors> DataFile::open_safetensors(const storage::Storage& storage, const std::string& name,
                                                               bool follow_links) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<storage::ReadableFile> bytes, storage.open(name, follow_links));
  if (std::optional<Error> pointer = lfs_pointer_error(*bytes)) return std::move(*pointer).file(name);
  std::unique_ptr<DataFile> file(new DataFile(name, std::move(bytes)));
  file->is_safetensors_ = true;
  Result<safetensors::Header> header = safetensors::read_header(*file->bytes_);
  if (!header) return std::move(header).error().file(name);
  file->take_checksums(*header);
  return OpenedSafetensors{std::move(file), *std::move(header)};
}

void DataFile::take_checksums(safetensors::Header& header) {
  if (!header.checksums) return;
  SafetensorsChecksums& checksums = safetensors_checksums_;
  checksums.data_offset = header.data_offset;
  checksums.block_bytes = safetensors::coverage_of(header.tensors).block_bytes;
  checksums.crcs = *std::exchange(header.checksums, std::nullopt);
  std::size_t next = 0;
  for (const safetensors::Tensor& tensor : header.tensors) {
    const std::uint64_t bytes = tensor.end - tensor.begin;
    if (bytes != 0) checksums.places.push_back({header.data_offset + tensor.begin, next});
    next += (bytes + checksums.block_bytes - 1) / checksums.block_bytes;
  }
}

std::span<const std::uint32_t> DataFile::safetensors_crcs(const ItemLocation& location) const {
  const SafetensorsChecksums& checksums = safetensors_checksums_;
  if (location.length == 0 || checksums.places.empty()) return {};
  const auto place = std::partition_point(checksums.places.begin(), checksums.places.end(),
                                          [&](const auto& it) { return it.offset < location.offset; });
  assert(place != checksums.places.end() && place->offset == location.offset);
  const std::uint64_t count = (location.length + checksums.block_bytes - 1) / checksums.block_bytes;
  return std::span(checksums.crcs).subspan(place->first, count);
}

Result<std::unique_ptr<DataFile>> DataFile::open_torch_save(const storage::Storage& storage, const std::string& name) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<storage::ReadableFile> bytes, storage.open(name, true));
  std::unique_ptr<DataFile> file(new DataFile(name, std::move(bytes)));
  Result<std::unique_ptr<torch_file::StateFile>> state_file = torch_file::StateFile::open(*file->bytes_);
  if (!state_file) return std::move(state_file).error().file(name);
  file->state_file_ = *std::move(state_file);
  return file;
}

Result<std::unique_ptr<DataFile>> DataFile::open_bytes(const storage::Storage& storage, const std::string& name) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<storage::ReadableFile> bytes, storage.open(name, false));
  if (std::optional<Error> pointer = lfs_pointer_error(*bytes)) return std::move(*pointer).file(name);
  return std::unique_ptr<DataFile>(new DataFile(name, std::move(bytes)));
}

Result<std::unique_ptr<DataFile>> DataFile::open_torch_item(const storage::Storage& storage, const std::string& name,
                                                            const std::string& item) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<DataFile> file, open_bytes(storage, name));
  Result<std::unique_ptr<torch_file::StateFile>> state_file = torch_file::StateFile::open_item(*file->bytes_, item);
  if (!state_file) return std::move(state_file).error().file(name);
  file->state_file_ = *std::move(state_file);
  return file;
}

void DataFile::add_part(const std::string& fqn, Part part) {
  if (!parts_) parts_ = std::make_shared<Parts>();
  const auto offsets = part.box.offsets().span();
  (*parts_)[fqn].insert_or_assign(std::vector(offsets.begin(), offsets.end()), std::move(part));
}

const DataFile::Part* DataFile::part_of(std::string_view fqn, const Box& box) const {
  if (!parts_) return nullptr;
  const auto parts = parts_->find(fqn);
  if (parts == parts_->end()) return nullptr;
  const auto offsets = box.offsets().span();
  const auto part = parts->second.find(std::vector(offsets.begin(), offsets.end()));
  return part != parts->second.end() && part->second.box == box ? &part->second : nullptr;
}

Result<StoredTensor> DataFile::tensor_of_cairn(const CatalogTensor& tensor, std::size_t chunk) const {
  const ItemLocation& location = tensor.locations[chunk];
  const std::optional<std::size_t> found = trailer_->item_at(location.offset);
  if (!found) return Error(ErrorCode::kCorrupt, "no item begins at the offset in the metadata").offset(location.offset);
  const manifest::TrailerItem item = trailer_->item(*found);
  const Box box = tensor.chunk(chunk);
  if (item.fqn != tensor.fqn)
    return differs("the key of the item differs from the metadata", "'" + tensor.fqn + "'", "'" + item.fqn + "'");
  if (item.kind == manifest::TrailerItem::Kind::kValue || item.dtype != tensor.dtype || !(item.box == box) ||
      item.range.item_length != location.length) {
    return differs("the item differs from the metadata",
                   describe(tensor.dtype, box.sizes()) + " of " + std::to_string(location.length) + " bytes",
                   describe(item.dtype, item.box.sizes()) + " of " + std::to_string(item.range.item_length) + " bytes");
  }
  if (item.kind == manifest::TrailerItem::Kind::kSerializedTensor) {
    return Error(ErrorCode::kUnsupported, "the tensor is stored as an archive that only torch can read");
  }
  StoredTensor stored;
  stored.dtype = item.dtype;
  stored.sizes = box.sizes();
  stored.strides = row_major_strides(box.sizes());
  stored.record_offset = item.range.payload_offset;
  stored.record_bytes = item.range.payload_length;
  stored.block_crcs = trailer_->block_checksums(*found);
  const auto needed =
      checked_multiply<std::uint64_t>(static_cast<std::uint64_t>(box.element_count()), item_bytes(item.dtype));
  if (!needed || *needed != stored.record_bytes) {
    return differs("the size of the payload differs from the shape",
                   needed ? std::to_string(*needed) : "a countable size",
                   std::to_string(stored.record_bytes) + " bytes");
  }
  return stored;
}

Result<StoredTensor> DataFile::tensor_of_stock(const CatalogTensor& tensor, std::size_t chunk) const {
  const ItemLocation& location = tensor.locations[chunk];
  CAIRN_TRY_ASSIGN(const SourceWindow window, SourceWindow::make(*bytes_, location.offset, location.length));
  CAIRN_TRY_ASSIGN(StoredTensor record, torch_file::read_tensor_item(window));
  const Extents sizes = tensor.chunk(chunk).sizes();
  if (!(record.sizes == sizes)) {  // torch's metadata may have another dtype: the file counts
    return differs("the tensor differs from the metadata", describe(tensor.dtype, sizes),
                   describe(record.dtype, record.sizes));
  }
  record.record_offset += location.offset;
  return record;
}

// StateFile has made the catalog's numbers, and has checked them against the file. The opener of a directory has
// compared the numbers with those of the directory.
Result<StoredTensor> DataFile::tensor_of_torch_save(const CatalogTensor& tensor, std::size_t chunk) const {
  const torch_file::StateFile::Entry* entry = state_file_->find(tensor.fqn);
  if (entry == nullptr || !entry->tensor) return Error(ErrorCode::kInternal, "the file lacks a tensor of its catalog");
  CAIRN_TRY_ASSIGN(StoredTensor stored, state_file_->tensor(*entry));
  const Box box = tensor.chunk(chunk);
  if (const Part* part = part_of(tensor.fqn, box)) {
    stored.first_element += part->first_element;
    stored.sizes = box.sizes();
  }
  return stored;
}

// The header was checked against the catalog's numbers and the file's size when the file was opened.
Result<StoredTensor> DataFile::tensor_of_safetensors(const CatalogTensor& tensor, std::size_t chunk) const {
  const ItemLocation& location = tensor.locations[chunk];
  const Box box = tensor.chunk(chunk);
  StoredTensor stored;
  stored.dtype = tensor.dtype;
  stored.sizes = box.sizes();
  stored.strides = row_major_strides(stored.sizes);
  if (const Part* part = part_of(tensor.fqn, box)) {
    stored.first_element = part->first_element;
    stored.strides = part->strides;
  }
  stored.record_offset = location.offset;
  stored.record_bytes = location.length;
  stored.block_crcs = safetensors_crcs(location);
  stored.block_bytes = safetensors_checksums_.block_bytes;
  return stored;
}

Result<StoredTensor> DataFile::tensor(const CatalogTensor& tensor, std::size_t chunk) const {
  if (is_safetensors_) return tensor_of_safetensors(tensor, chunk);
  const ItemLocation& location = tensor.locations[chunk];
  const auto find = [&] {
    if (state_file_) return tensor_of_torch_save(tensor, chunk);
    return trailer_ ? tensor_of_cairn(tensor, chunk) : tensor_of_stock(tensor, chunk);
  };
  Result<StoredTensor> stored = find();
  if (!stored) return std::move(stored).error().key(tensor.fqn).file(name_).offset(location.offset);
  return stored;
}

Result<void> DataFile::check_value(const CatalogValue& value) const {
  if (!trailer_) return {};
  const auto complain = [&](std::string_view actual) {
    return Error(ErrorCode::kCorrupt, "the item differs from the metadata")
        .key(value.fqn)
        .file(name_)
        .offset(value.location.offset)
        .expected("the value '" + value.fqn + "'")
        .actual(actual);
  };
  const std::optional<std::size_t> found = trailer_->item_at(value.location.offset);
  if (!found) return complain("no item that begins there");
  const manifest::TrailerItem item = trailer_->item(*found);
  const bool is_value = item.kind == manifest::TrailerItem::Kind::kValue;
  if (!is_value || item.fqn != value.fqn) return complain((is_value ? "the value '" : "the tensor '") + item.fqn + "'");
  if (item.range.item_length != value.location.length) {
    return complain(std::to_string(item.range.item_length) + " bytes, not " + std::to_string(value.location.length));
  }
  return {};
}

Result<void> DataFile::check_blocks(const ItemLocation& location, std::string_view bytes,
                                    std::span<const std::uint32_t> crcs, std::uint64_t block_bytes) const {
  std::uint64_t begin = 0;
  for (const std::uint32_t expected : crcs) {
    const std::uint64_t length = std::min(block_bytes, bytes.size() - begin);
    const std::uint32_t actual = crc32(std::as_bytes(std::span(bytes)).subspan(begin, length));
    if (actual != expected) {
      return Error(ErrorCode::kCorrupt, "a checksum differs")
          .file(name_)
          .offset(location.offset + begin)
          .expected(crc_text(expected))
          .actual(crc_text(actual));
    }
    begin += length;
  }
  return {};
}

Result<DataFile::Item> DataFile::read_item(const ItemLocation& location, bool verify) const {
  // Checked before the allocation: the metadata may claim any length.
  if (!range_within(location.offset, location.length, bytes_->size())) {
    return Error(ErrorCode::kCorrupt, "the item ends beyond the end of the data file")
        .file(name_)
        .offset(location.offset)
        .expected(std::to_string(location.length) + " bytes")
        .actual("a file of " + std::to_string(bytes_->size()) + " bytes");
  }
  Item item{std::string(location.length, '\0'), false};
  CAIRN_TRY(bytes_->read_at(location.offset, std::as_writable_bytes(std::span(item.bytes))));
  if (verify && is_safetensors_) {
    const std::span<const std::uint32_t> crcs = safetensors_crcs(location);
    CAIRN_TRY(check_blocks(location, item.bytes, crcs, safetensors_checksums_.block_bytes));
    item.checked = !crcs.empty();
    return item;
  }
  if (!verify || !trailer_) return item;
  const std::optional<std::size_t> found = trailer_->item_at(location.offset);
  if (!found || trailer_->range(*found).item_length != location.length) {
    return Error(ErrorCode::kCorrupt, "no item begins at the offset in the metadata")
        .file(name_)
        .offset(location.offset);
  }
  const manifest::ItemRange& range = trailer_->range(*found);
  // A tensor's archive: the caller checks the archive's own CRCs.
  if (range.payload_length != range.item_length) return item;
  CAIRN_TRY(check_blocks(location, item.bytes, trailer_->block_checksums(*found), kChecksumBlockBytes));
  item.checked = true;
  return item;
}

}  // namespace cairn::data_file
