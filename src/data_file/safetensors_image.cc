#include "data_file/safetensors_image.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>

#include "core/checked.h"
#include "core/checksum.h"
#include "format/safetensors/checksums.h"

namespace cairn::data_file {
namespace {

constexpr std::string_view kFormatName = "format";

void add_format(safetensors::Header& header, const std::vector<std::pair<std::string, std::string>>& metadata) {
  const bool has_format =
      std::any_of(metadata.begin(), metadata.end(), [](const auto& entry) { return entry.first == kFormatName; });
  if (!has_format) header.metadata.emplace_back(kFormatName, "pt");
}

}  // namespace

// The header lacks its metadata.
Result<safetensors::Header> SafetensorsImage::lay_out(std::span<const Item> items) {
  order_.resize(items.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
    return item_bytes(items[a].tensor->dtype) > item_bytes(items[b].tensor->dtype);
  });
  safetensors::Header header;
  header.tensors.reserve(items.size());
  std::uint64_t end = 0;
  for (const std::size_t index : order_) {
    const Item& item = items[index];
    const Result<std::uint64_t> bytes = bytes_of(*item.tensor);
    if (!bytes) return Error(bytes.error()).key(item.name);
    const std::optional<std::uint64_t> next = checked_add(end, *bytes);
    if (!next) return Error(ErrorCode::kInvalidArgument, "a file of more than 2^64 bytes").key(item.name);
    header.tensors.push_back({std::string(item.name), item.tensor->dtype, item.tensor->sizes, end, *next});
    end = *next;
  }
  return header;
}

Result<void> SafetensorsImage::add_payloads(const safetensors::Header& header, std::span<const Item> items,
                                            const safetensors::HeaderPadding& padding) {
  CAIRN_TRY_ASSIGN(header_, safetensors::render_header(header, padding));
  reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const safetensors::Tensor& tensor = header.tensors[i];
    add_tensor(header_.size() + tensor.begin, tensor.end - tensor.begin, *items[order_[i]].tensor);
  }
  file_bytes_ = header_.size() + (header.tensors.empty() ? 0 : header.tensors.back().end);
  return {};
}

Result<SafetensorsImage> SafetensorsImage::make(const SaveId& save_id, std::span<const Item> items,
                                                std::vector<std::pair<std::string, std::string>> metadata) {
  SafetensorsImage image;
  CAIRN_TRY_ASSIGN(safetensors::Header header, image.lay_out(items));
  image.coverage_ = safetensors::coverage_of(header.tensors);
  if (image.coverage_.blocks > safetensors::ChecksumCoverage::kBlocksMax) {
    return Error(ErrorCode::kUnsupported, "too many bytes for the checksums of a safetensors file: save several files")
        .actual(std::to_string(header.tensors.back().end) + " bytes of tensors");
  }
  header.metadata.emplace_back(safetensors::kChecksumsName, safetensors::blank_checksums(image.coverage_));
  add_format(header, metadata);
  header.metadata.emplace_back(safetensors::kSaveIdName, to_hex(save_id));
  for (auto& entry : metadata) header.metadata.push_back(std::move(entry));
  CAIRN_TRY(
      image.add_payloads(header, items, {safetensors::kChecksummedDataAlignment, safetensors::kChecksummedSpacesMin}));
  return image;
}

Result<SafetensorsImage> SafetensorsImage::make_plain(std::span<const Item> items,
                                                      std::vector<std::pair<std::string, std::string>> metadata) {
  SafetensorsImage image;
  image.has_checksums_ = false;
  CAIRN_TRY_ASSIGN(safetensors::Header header, image.lay_out(items));
  add_format(header, metadata);
  for (auto& entry : metadata) header.metadata.push_back(std::move(entry));
  CAIRN_TRY(image.add_payloads(header, items, {}));
  return image;
}

// ready_frame() has all bytes of the frames.
void SafetensorsImage::render_frame(std::size_t /*frame*/, std::uint32_t /*previous_payload_crc*/,
                                    std::span<std::byte> out) const {
  assert(out.empty());
  (void)out;
}

std::uint32_t SafetensorsImage::render_trailer(std::span<const std::uint32_t> /*checksums*/,
                                               std::span<std::byte> /*out*/) const {
  return 0;
}

void SafetensorsImage::revise(std::span<const std::uint32_t> checksums, std::span<std::byte> out) const {
  assert(out.size() == header_.size());
  std::memcpy(out.data(), header_.data(), out.size());
  const std::uint64_t blocks_each = coverage_.block_bytes / kChecksumBlockBytes;
  if (blocks_each == 1) {  // the checksums of the payloads' blocks are the first
    safetensors::write_checksums(out, checksums.first(coverage_.blocks));
    return;
  }
  std::vector<std::uint32_t> combined;
  combined.reserve(coverage_.blocks);
  for (std::size_t i = 0; i < payload_count(); ++i) {
    const auto blocks = checksums.subspan(slots().first_block(i), slots().block_count(i));
    for (std::uint64_t first = 0; first < blocks.size(); first += blocks_each) {
      const std::uint64_t bytes = std::min(coverage_.block_bytes, payload_length(i) - first * kChecksumBlockBytes);
      const std::uint64_t count = std::min<std::uint64_t>(blocks_each, blocks.size() - first);
      combined.push_back(combine_blocks(blocks.subspan(first, count), bytes));
    }
  }
  safetensors::write_checksums(out, combined);
}

}  // namespace cairn::data_file
