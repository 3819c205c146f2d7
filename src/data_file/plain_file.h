// PlainFile: a file without a trailer of Cairn: of torch.save, or of bytes that follow each other without gaps.
//
// The places of the payloads follow from their sizes alone, so that a layout can be sent to a process that has the
// staged bytes.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data_file/image.h"

namespace cairn::data_file {

struct PlainFile {
  enum class Form : std::uint8_t { kBytes, kTorchSave };
  Form form = Form::kBytes;
  std::vector<std::uint64_t> payload_bytes;  // of kTorchSave: of each storage, and last of the pickle

  // The image of the file whose payloads are in `staged`, at their places in the file; `staged` outlives the image.
  // nullopt: the payloads are absent. kInvalidArgument if `staged` is smaller than the file.
  Result<std::unique_ptr<Image>> image(std::optional<std::span<const std::byte>> staged) const;

  friend bool operator==(const PlainFile&, const PlainFile&) = default;
};

}  // namespace cairn::data_file
