// Item placement: where an item goes in a data file, given where the one before it ends.
//
// Pure, and the only place that decides it: whoever plans a save and whoever writes it come to the same offsets without
// a word between them.
#pragma once

#include <cairn/result.h>

#include <cstdint>

#include "format/manifest/trailer.h"
#include "format/torch_file/tensor_item.h"

namespace cairn::data_file {

// Payloads of this size and more begin at a page of the file, so that they can be read straight into aligned memory.
inline constexpr std::uint64_t kPageAlignedPayloadBytes = 256 * 1024;
inline constexpr std::uint64_t kPayloadPageBytes = 4096;
// All others begin at a multiple of this, so that no dtype is ever torn.
inline constexpr std::uint64_t kPayloadAlignment = 64;

struct PlacedTensor {
  manifest::ItemExtent extent;
  torch_file::TensorItemLayout layout;
};

// A tensor whose elements are to be written. Fails with kInvalidArgument if the file would exceed 2^62 bytes, and as
// layout_tensor_item() does.
Result<PlacedTensor> place_tensor(const torch_file::TensorItem& item, std::uint64_t previous_end);

// `length` bytes that are the whole item. Same error.
Result<manifest::ItemExtent> place_bytes(std::uint64_t length, std::uint64_t previous_end);

}  // namespace cairn::data_file
