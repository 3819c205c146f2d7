// ChunkValidation: whether the chunks of a tensor fit together, as DCP's `_validate_global_plan` checks it.
//
// Pure. Takes n log n steps for n chunks that are cut along one dimension, and n log^d n for d dimensions.
#pragma once

#include <cairn/box.h>
#include <cairn/result.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace cairn::plan {

// Whether chunks have to make up the whole tensor. DCP asks for it unless a single process saves.
enum class Coverage : std::uint8_t { kWhole, kPart };

// The chunks of one tensor. Views only.
struct TensorChunks {
  std::string_view fqn;
  const Extents& shape;                  // a valid one: element_count() has counted it
  std::span<const std::int64_t> boxes;   // per chunk its offsets, then its sizes, as in CatalogTensor; each a valid Box
  std::span<const std::uint32_t> ranks;  // per chunk the rank that has it; empty where a single process saves
};

// Fails with kInvalidArgument, naming key, chunks and ranks, if a chunk leaves the tensor, two chunks have an element
// in common, or an element is in none although `coverage` is kWhole. A chunk without elements is in nobody's way. A
// tensor without dimensions has one element, so all its chunks are the same one.
Result<void> validate_chunks(const TensorChunks& chunks, Coverage coverage);

}  // namespace cairn::plan
