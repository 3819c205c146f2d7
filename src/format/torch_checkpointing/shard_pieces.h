// local_pieces: the boxes of a DTensor that the tensor of one rank consists of.
//
// Pure. Placements apply from left to right, one for each dimension of the mesh, as in torch: Shard cuts a dimension
// into ranges of one size, the last ones shorter or empty; StridedShard cuts it first into `split_factor` ranges, and
// takes a part of each. A rank's tensor is therefore a product of ranges: one list of ranges for each dimension.
#pragma once

#include <cairn/result.h>
#include <cairn/tensor.h>

#include <cstdint>
#include <vector>

#include "core/byte_budget.h"
#include "format/torch_checkpointing/saved_metadata.h"

namespace cairn::torch_checkpointing {

struct LocalPieces {
  Extents local_shape;
  std::vector<BoxSharding::Piece> pieces;  // without empty boxes
};

// kCorrupt if the mesh lacks the rank; kUnsafe if the budget does not suffice for the ranges, as with an absurd
// split_factor.
Result<LocalPieces> local_pieces(const MeshSharding& sharding, const Mesh& mesh, std::uint32_t rank,
                                 ByteBudget& budget);

}  // namespace cairn::torch_checkpointing
