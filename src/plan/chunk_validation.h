// ChunkValidation: whether the chunks of a tensor fit together; the check of DCP's `_validate_global_plan`.
//
// Pure. Takes n log n steps for n chunks cut along one or two dimensions, and n log^(d-1) n steps for d dimensions.
#pragma once

#include <cairn/result.h>
#include <cairn/tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace cairn::plan {

// Whether the chunks must cover the whole tensor. DCP requires full coverage unless a single process saves.
enum class Coverage : std::uint8_t { kWhole, kPart };

// The chunks of one tensor. Views only.
struct TensorChunks {
  std::string_view fqn;
  const Extents& shape;                  // valid: element_count(shape) succeeds
  std::span<const std::int64_t> boxes;   // per chunk its offsets, then its sizes, as in CatalogTensor; each a valid Box
  std::span<const std::uint32_t> ranks;  // per chunk the rank that has the chunk; empty if a single process saves
};

// Fails with kInvalidArgument, naming key, chunks and ranks, if a chunk leaves the tensor, if two chunks have a common
// element, or if `coverage` is kWhole and an element is in no chunk. A chunk without elements overlaps nothing. A
// tensor without dimensions has one element: all of its chunks are equal and valid.
Result<void> validate_chunks(const TensorChunks& chunks, Coverage coverage);

}  // namespace cairn::plan
