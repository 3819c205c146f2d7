// Item placement: the offset of an item in a data file, given the end of the preceding item.
//
// Pure. All code that decides offsets is here: the planner of a save and the writer of a file compute equal offsets
// without communication.
#pragma once

#include <cairn/result.h>

#include <cstdint>

#include "format/manifest/trailer.h"
#include "format/torch_file/tensor_item.h"

namespace cairn::data_file {

// Payloads of at least this size begin at a page of the file: readers can read the payload directly into aligned
// memory.
inline constexpr std::uint64_t kPageAlignedPayloadBytes = 256 * 1024;
inline constexpr std::uint64_t kPayloadPageBytes = 4096;
// All smaller payloads begin at a multiple of 64 bytes: no element of any dtype crosses an alignment boundary.
inline constexpr std::uint64_t kPayloadAlignment = 64;

struct PlacedTensor {
  manifest::ItemRange range;
  torch_file::TensorItemLayout layout;
};

// Places a tensor whose elements are to be written. Fails with kInvalidArgument if the file would exceed 2^62 bytes,
// and like layout_tensor_item().
Result<PlacedTensor> place_tensor(const torch_file::TensorItem& item, std::uint64_t previous_end);

// Places an item of `length` ready bytes. Fails with kInvalidArgument if the file would exceed 2^62 bytes.
Result<manifest::ItemRange> place_bytes(std::uint64_t length, std::uint64_t previous_end);

}  // namespace cairn::data_file
