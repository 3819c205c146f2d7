#include "data_file/torch_save_image.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

#include "core/checked.h"
#include "core/checksum.h"
#include "data_file/item_placement.h"

namespace cairn::data_file {
namespace {

constexpr std::uint64_t kImageBytesMax = std::uint64_t{1} << 62;

// The padding that makes `offset`, the end of a local header without padding, a multiple of `alignment`. A padding
// field takes at least 4 bytes.
zip::PaddingBytes padding_to(std::uint64_t offset, std::uint64_t alignment) {
  if (offset % alignment == 0) return 0;
  return static_cast<zip::PaddingBytes>(align_up(offset + 4, alignment) - offset);
}

}  // namespace

std::string TorchSaveImage::name_of(std::size_t payload) const {
  return payload == storage_count_ ? "archive/data.pkl" : "archive/data/" + std::to_string(payload);
}

zip::Record TorchSaveImage::record_of(std::size_t payload, std::string_view name, std::uint32_t crc) const {
  return {name, payload_length(payload), payloads_[payload].header_offset, crc, true};
}

std::uint64_t TorchSaveImage::place(ReadyRecord& record, std::uint64_t offset) {
  record.header_offset = offset;
  record.crc = crc32(std::as_bytes(std::span(record.bytes)));
  return offset + zip::local_header_bytes(record.record()) + record.bytes.size();
}

Result<std::uint64_t> TorchSaveImage::place_payload(std::string_view name, std::uint64_t bytes, std::uint64_t offset) {
  if (bytes > kImageBytesMax || offset > kImageBytesMax - bytes) {
    return Error(ErrorCode::kInvalidArgument, "a file of more than 2^62 bytes");
  }
  const zip::Record record{name, bytes, offset, 0, true};
  const std::uint64_t alignment = bytes >= kPageAlignedPayloadBytes ? kPayloadPageBytes : kPayloadAlignment;
  const zip::PaddingBytes padding = padding_to(offset + zip::local_header_bytes(record), alignment);
  payloads_.push_back({offset, padding});
  return offset + zip::local_header_bytes(record, padding);
}

Result<TorchSaveImage> TorchSaveImage::make(std::string pickle, std::span<const TensorView> storages) {
  auto kept = std::make_unique<const std::string>(std::move(pickle));
  std::vector<std::uint64_t> payload_bytes(storages.size() + 1, kept->size());
  for (std::size_t i = 0; i < storages.size(); ++i) {
    CAIRN_TRY_ASSIGN(payload_bytes[i], bytes_of(storages[i]));
  }
  const auto add = [&](TorchSaveImage& image, std::size_t i, std::uint64_t offset) {
    if (i == storages.size()) return image.add_bytes(offset, *kept);
    image.add_tensor(offset, payload_bytes[i], storages[i]);
  };
  CAIRN_TRY_ASSIGN(TorchSaveImage image, lay_out(payload_bytes, add));
  image.pickle_ = std::move(kept);
  return image;
}

Result<TorchSaveImage> TorchSaveImage::of_staged(std::span<const std::uint64_t> payload_bytes,
                                                 std::optional<std::span<const std::byte>> staged) {
  bool fits = true;
  const auto add = [&](TorchSaveImage& image, std::size_t i, std::uint64_t offset) {
    const std::uint64_t length = payload_bytes[i];
    image.staged_.reserve(payload_bytes.size());  // the views stay where they are
    fits = fits && (!staged || (offset <= staged->size() && length <= staged->size() - offset));
    const void* const data = staged && fits ? staged->data() + offset : nullptr;
    image.staged_.push_back(TensorView::contiguous(data, DType::kUInt8, {static_cast<std::int64_t>(length)}));
    image.add_tensor(offset, length, image.staged_.back());
  };
  CAIRN_TRY_ASSIGN(TorchSaveImage image, lay_out(payload_bytes, add));
  if (staged && (!fits || image.file_bytes() > staged->size())) {
    return Error(ErrorCode::kInvalidArgument, "a file of torch.save that is larger than its staged bytes")
        .expected(std::to_string(image.file_bytes()) + " bytes")
        .actual(std::to_string(staged->size()));
  }
  return image;
}

Result<TorchSaveImage> TorchSaveImage::lay_out(
    std::span<const std::uint64_t> payload_bytes,
    const std::function<void(TorchSaveImage&, std::size_t, std::uint64_t)>& add) {
  if (payload_bytes.empty()) return Error(ErrorCode::kInvalidArgument, "a file of torch.save without a pickle");
  TorchSaveImage image;
  image.storage_count_ = payload_bytes.size() - 1;
  image.first_ = {"archive/byteorder", "little"};
  image.last_ = {"archive/version", "3\n"};
  image.reserve(payload_bytes.size());
  image.payloads_.reserve(payload_bytes.size());
  std::uint64_t end = place(image.first_, 0);
  for (std::size_t i = 0; i < payload_bytes.size(); ++i) {
    const std::uint64_t bytes = payload_bytes[i];
    const std::string name = image.name_of(i);
    CAIRN_TRY_ASSIGN(const std::uint64_t offset, image.place_payload(name, bytes, end));
    add(image, i, offset);
    const zip::Record record = image.record_of(i, name);
    end = offset + bytes + zip::descriptor_bytes(record);
    image.directory_.directory_bytes += zip::directory_entry_bytes(record);
  }
  image.directory_.directory_offset = place(image.last_, end);
  for (const ReadyRecord* record : {&image.first_, &image.last_}) {
    image.directory_.directory_bytes += zip::directory_entry_bytes(record->record());
  }
  image.directory_.count = image.payload_count() + 2;
  return image;
}

void TorchSaveImage::render_frame(std::size_t frame, std::uint32_t previous_payload_crc,
                                  std::span<std::byte> out) const {
  std::byte* place = out.data();
  const auto render_ready = [&place](const ReadyRecord& record) {
    place = zip::render_local_header(record.record(), place);
    place = std::copy_n(reinterpret_cast<const std::byte*>(record.bytes.data()), record.bytes.size(), place);
  };
  if (frame == 0) {
    render_ready(first_);
  } else {
    const std::string name = name_of(frame - 1);
    place = zip::render_descriptor(record_of(frame - 1, name, previous_payload_crc), place);
  }
  if (frame == payload_count()) {
    render_ready(last_);
  } else {
    const std::string name = name_of(frame);
    place = zip::render_local_header(record_of(frame, name), place, payloads_[frame].padding);
  }
  assert(place == out.data() + out.size());
}

std::uint32_t TorchSaveImage::render_trailer(std::span<const std::uint32_t> checksums, std::span<std::byte> out) const {
  std::byte* place = zip::render_directory_entry(first_.record(), out.data());
  for (std::size_t i = 0; i < payload_count(); ++i) {
    const auto blocks = checksums.subspan(slots().first_block(i), slots().block_count(i));
    const std::string name = name_of(i);
    place = zip::render_directory_entry(record_of(i, name, combine_blocks(blocks, payload_length(i))), place);
  }
  place = zip::render_directory_entry(last_.record(), place);
  place = zip::render_end(directory_, place);
  assert(place == out.data() + out.size());
  return crc32(out);
}

}  // namespace cairn::data_file
