// TorchSaveImage: the image of a file of torch.save: a zip archive with one pickle and any number of storages.
//
// The records are data.pkl, byteorder, then data/0, data/1, ... (the payloads), then version. A frame holds the
// descriptor of the storage before the frame and the local header of the storage after the frame. The trailer is the
// directory of the archive. torch 2.2 and later read the file by torch.load, with or without weights_only and mmap.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <span>
#include <string>
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
  struct StorageRecord {
    std::uint64_t header_offset = 0;
    zip::PaddingBytes padding = 0;
  };
  TorchSaveImage() = default;
  std::uint64_t place(ReadyRecord& record, std::uint64_t offset);
  Result<std::uint64_t> place_storage(const TensorView& storage, std::uint64_t offset);
  // The record of a storage under `name`, which the caller has made from the storage's number.
  zip::Record storage_record(std::size_t index, std::string_view name, std::uint32_t crc = 0) const;

  std::vector<ReadyRecord> first_;  // before the storages
  std::vector<StorageRecord> storages_;
  std::vector<ReadyRecord> last_;  // behind the storages
  zip::End directory_;
};

}  // namespace cairn::data_file
