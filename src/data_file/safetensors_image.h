// SafetensorsImage: the image of a safetensors file with checksums (format/safetensors/checksums.h).
//
// Frame 0 is the header; the tensors follow without gaps, the tensors with the largest elements first: each tensor then
// begins at a multiple of its element's size. The checksums in the header are zeros until all payloads are known:
// revise() renders the whole header again.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data_file/image.h"
#include "format/safetensors/checksums.h"
#include "format/safetensors/header.h"

namespace cairn::data_file {

class SafetensorsImage final : public Image {
 public:
  // All members are views: the owners outlive the image. The elements are absent if the tensor's data is null.
  struct Item {
    std::string_view name;
    const TensorView* tensor = nullptr;
  };

  // `metadata` becomes the file's metadata, after the save id, and after "format" ("pt") unless `metadata` has a
  // "format". Fails with kInvalidArgument for a name that safetensors refuses, and with kUnsupported for a type that
  // the format lacks and for a header above the format's limit.
  static Result<SafetensorsImage> make(const SaveId& save_id, std::span<const Item> items,
                                       std::vector<std::pair<std::string, std::string>> metadata = {});

  // Without checksums and save id: the bytes depend only on the items and `metadata`.
  static Result<SafetensorsImage> make_plain(std::span<const Item> items,
                                             std::vector<std::pair<std::string, std::string>> metadata);

  // The index in the items of make() of a payload.
  std::size_t item_of(std::size_t payload) const { return order_[payload]; }

  std::uint64_t trailer_offset() const override { return file_bytes_; }
  std::uint64_t trailer_bytes() const override { return 0; }
  void render_frame(std::size_t frame, std::uint32_t previous_payload_crc, std::span<std::byte> out) const override;
  std::optional<std::string_view> ready_frame(std::size_t frame) const override {
    return frame == 0 ? std::optional<std::string_view>(header_) : std::nullopt;
  }
  std::uint32_t render_trailer(std::span<const std::uint32_t> checksums, std::span<std::byte> out) const override;
  std::uint64_t revised_bytes() const override { return has_checksums_ ? header_.size() : 0; }
  void revise(std::span<const std::uint32_t> checksums, std::span<std::byte> out) const override;

 private:
  SafetensorsImage() = default;
  Result<safetensors::Header> lay_out(std::span<const Item> items);
  Result<void> add_payloads(const safetensors::Header& header, std::span<const Item> items,
                            const safetensors::HeaderPadding& padding);

  std::string header_;  // without checksums
  bool has_checksums_ = true;
  safetensors::ChecksumCoverage coverage_;
  std::vector<std::size_t> order_;  // of the items in the file
  std::uint64_t file_bytes_ = 0;
};

}  // namespace cairn::data_file
