#include "data_file/torch_save_image.h"

#include <cassert>
#include <cstring>
#include <optional>
#include <utility>

#include "core/checked.h"
#include "core/checksum.h"
#include "data_file/item_placement.h"

namespace cairn::data_file {
namespace {

constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 62;

std::string name_of_storage(std::size_t index) { return "archive/data/" + std::to_string(index); }

std::byte* render_bytes(const std::string& bytes, std::byte* out) {
  std::memcpy(out, bytes.data(), bytes.size());
  return out + bytes.size();
}

// The padding that makes `offset`, the end of a local header without padding, a multiple of `alignment`. A padding
// field takes at least 4 bytes.
zip::PaddingBytes padding_to(std::uint64_t offset, std::uint64_t alignment) {
  if (offset % alignment == 0) return 0;
  return static_cast<zip::PaddingBytes>(align_up(offset + 4, alignment) - offset);
}

}  // namespace

zip::Record TorchSaveImage::storage_record(std::size_t index, std::string_view name, std::uint32_t crc) const {
  return {name, payload_length(index), storages_[index].header_offset, crc, true};
}

std::uint64_t TorchSaveImage::place(ReadyRecord& record, std::uint64_t offset) {
  record.header_offset = offset;
  record.crc = crc32(std::as_bytes(std::span(record.bytes)));
  return offset + zip::local_header_bytes(record.record()) + record.bytes.size();
}

// Returns the end of the record.
Result<std::uint64_t> TorchSaveImage::place_storage(const TensorView& storage, std::uint64_t offset) {
  CAIRN_TRY_ASSIGN(const std::int64_t count, element_count(storage.sizes));
  const auto bytes = checked_multiply(static_cast<std::uint64_t>(count), std::uint64_t{item_bytes(storage.dtype)});
  if (!bytes || *bytes > kFileBytesMax || offset > kFileBytesMax - *bytes) {
    return Error(ErrorCode::kInvalidArgument, "a file of more than 2^62 bytes");
  }
  const std::string name = name_of_storage(storages_.size());
  zip::Record record{name, *bytes, offset, 0, true};
  const std::uint64_t alignment = *bytes >= kPageAlignedPayloadBytes ? kPayloadPageBytes : kPayloadAlignment;
  const zip::PaddingBytes padding = padding_to(offset + zip::local_header_bytes(record), alignment);
  storages_.push_back({offset, padding});
  const std::uint64_t payload = offset + zip::local_header_bytes(record, padding);
  add_tensor(payload, *bytes, storage);
  return payload + *bytes + zip::descriptor_bytes(record);
}

Result<TorchSaveImage> TorchSaveImage::make(std::string pickle, std::span<const TensorView> storages) {
  TorchSaveImage image;
  image.first_.push_back({"archive/data.pkl", std::move(pickle)});
  image.first_.push_back({"archive/byteorder", "little"});
  image.last_.push_back({"archive/version", "3\n"});
  std::uint64_t offset = 0;
  for (ReadyRecord& record : image.first_) offset = image.place(record, offset);
  image.reserve(storages.size());
  image.storages_.reserve(storages.size());
  for (const TensorView& storage : storages) {
    CAIRN_TRY_ASSIGN(offset, image.place_storage(storage, offset));
  }
  for (ReadyRecord& record : image.last_) offset = image.place(record, offset);
  image.directory_.count = image.first_.size() + storages.size() + image.last_.size();
  image.directory_.directory_offset = offset;
  for (const auto* records : {&image.first_, &image.last_}) {
    for (const ReadyRecord& record : *records) {
      image.directory_.directory_bytes += zip::directory_entry_bytes(record.record());
    }
  }
  for (std::size_t i = 0; i < storages.size(); ++i) {
    image.directory_.directory_bytes += zip::directory_entry_bytes(image.storage_record(i, name_of_storage(i)));
  }
  return image;
}

void TorchSaveImage::render_frame(std::size_t frame, std::uint32_t previous_payload_crc,
                                  std::span<std::byte> out) const {
  std::byte* place = out.data();
  const auto render_ready = [&](const std::vector<ReadyRecord>& records) {
    for (const ReadyRecord& record : records) {
      place = render_bytes(record.bytes, zip::render_local_header(record.record(), place));
    }
  };
  if (frame == 0) render_ready(first_);
  if (frame != 0) {
    const std::string name = name_of_storage(frame - 1);
    place = zip::render_descriptor(storage_record(frame - 1, name, previous_payload_crc), place);
  }
  if (frame == payload_count()) {
    render_ready(last_);
  } else {
    const std::string name = name_of_storage(frame);
    place = zip::render_local_header(storage_record(frame, name), place, storages_[frame].padding);
  }
  assert(place == out.data() + out.size());
}

std::uint32_t TorchSaveImage::render_trailer(std::span<const std::uint32_t> checksums, std::span<std::byte> out) const {
  std::byte* place = out.data();
  const auto render_ready = [&](const std::vector<ReadyRecord>& records) {
    for (const ReadyRecord& record : records) place = zip::render_directory_entry(record.record(), place);
  };
  render_ready(first_);
  for (std::size_t i = 0; i < payload_count(); ++i) {
    const auto blocks = checksums.subspan(slots().first_block(i), slots().block_count(i));
    const std::uint32_t crc = combine_blocks(blocks, payload_length(i));
    place = zip::render_directory_entry(storage_record(i, name_of_storage(i), crc), place);
  }
  render_ready(last_);
  place = zip::render_end(directory_, place);
  assert(place == out.data() + out.size());
  return crc32(out);
}

}  // namespace cairn::data_file
