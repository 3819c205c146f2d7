// TorchSaveImage: the image of a file of torch.save: a zip archive with one pickle and any number of storages.
//
// The records are byteorder, then data/0, data/1, ... and data.pkl (the payloads), then version. Payload i is storage
// i; the last payload is the pickle. A frame holds the descriptor of the payload before the frame and the local header
// of the payload after the frame. The trailer is the directory of the archive. torch 2.2 and later read the file by
// torch.load, with or without weights_only and mmap.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data_file/image.h"
#include "format/zip/record_writer.h"

namespace cairn::data_file {

class TorchSaveImage final : public Image {
 public:
  // `pickle` names storage i by the key "i". `storages` and the views outlive the image; the bytes of a storage are the
  // row-major elements of the view, and absent if the view's data is null. Fails with kInvalidArgument for a file above
  // 2^62 bytes.
  static Result<TorchSaveImage> make(std::string pickle, std::span<const TensorView> storages);
  // The image of a file whose payloads, of `payload_bytes` each, are already in `staged`, at their places in the file;
  // the last payload is the pickle. `staged` outlives the image; nullopt: the payloads are absent. kInvalidArgument
  // without a pickle, and if `staged` is smaller than the file.
  static Result<TorchSaveImage> of_staged(std::span<const std::uint64_t> payload_bytes,
                                          std::optional<std::span<const std::byte>> staged);

  std::uint64_t trailer_offset() const override { return directory_.directory_offset; }
  std::uint64_t trailer_bytes() const override { return directory_.directory_bytes + zip::end_bytes(directory_); }
  void render_frame(std::size_t frame, std::uint32_t previous_payload_crc, std::span<std::byte> out) const override;
  std::uint32_t render_trailer(std::span<const std::uint32_t> checksums, std::span<std::byte> out) const override;

 private:
  // A record whose bytes are ready.
  struct ReadyRecord {
    std::string name;
    std::string bytes;
    std::uint64_t header_offset = 0;
    std::uint32_t crc = 0;
    zip::Record record() const { return {name, bytes.size(), header_offset, crc}; }
  };
  struct PayloadRecord {
    std::uint64_t header_offset = 0;
    zip::PaddingBytes padding = 0;
  };
  TorchSaveImage() = default;
  std::string name_of(std::size_t payload) const;
  static std::uint64_t place(ReadyRecord& record, std::uint64_t offset);
  // Places the record of the next payload, of `bytes` bytes, and returns the payload's offset.
  Result<std::uint64_t> place_payload(std::string_view name, std::uint64_t bytes, std::uint64_t offset);
  // Lays out the payloads; `add(i, offset)` adds payload i to the image.
  static Result<TorchSaveImage> lay_out(std::span<const std::uint64_t> payload_bytes,
                                        const std::function<void(TorchSaveImage&, std::size_t, std::uint64_t)>& add);
  // The record of a payload under `name`, which is name_of(payload).
  zip::Record record_of(std::size_t payload, std::string_view name, std::uint32_t crc = 0) const;

  std::unique_ptr<const std::string> pickle_;  // the image may be moved, the payload's bytes may not
  std::vector<TensorView> staged_;             // the payloads, in an image made by of_staged()
  std::size_t storage_count_ = 0;
  ReadyRecord first_;
  std::vector<PayloadRecord> payloads_;
  ReadyRecord last_;
  zip::End directory_;
};

}  // namespace cairn::data_file
