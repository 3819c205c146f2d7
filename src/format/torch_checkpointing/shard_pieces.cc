#include "format/torch_checkpointing/shard_pieces.h"

#include <algorithm>
#include <string>
#include <utility>

namespace cairn::torch_checkpointing {
namespace {

struct Range {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};

// The elements of one dimension that a rank holds, in the order of its tensor.
using Ranges = std::vector<Range>;

// The length of a range if `length` elements are cut into `count` ranges of one size, rounded up.
std::int64_t step_of(std::int64_t length, std::int64_t count) { return length / count + (length % count != 0 ? 1 : 0); }

// Range number `index` of `count`, as torch.chunk cuts `length` elements.
Range chunk_of(std::int64_t length, std::int64_t count, std::int64_t index) {
  const std::int64_t step = step_of(length, count);
  // index * step may exceed 64 bits.
  if (step == 0 || index > length / step) return {length, 0};
  const std::int64_t begin = std::min(index * step, length);
  return {begin, std::min(step, length - begin)};
}

// Appends a range, joined with the last one where the two are adjacent.
Result<void> append(Range range, ByteBudget& budget, Ranges& out) {
  if (!out.empty() && out.back().begin + out.back().length == range.begin) {
    out.back().length += range.length;
    return {};
  }
  CAIRN_TRY(budget.charge(sizeof(Range)));
  out.push_back(range);
  return {};
}

// Appends the elements [cut.begin, cut.begin + cut.length) of the list `from`.
Result<void> append_cut(const Ranges& from, Range cut, ByteBudget& budget, Ranges& out) {
  std::int64_t passed = 0;
  for (const Range& range : from) {
    if (cut.length == 0) return {};
    const std::int64_t skipped = cut.begin - passed;
    passed += range.length;
    if (skipped >= range.length) continue;
    const std::int64_t taken = std::min(range.length - skipped, cut.length);
    CAIRN_TRY(append({range.begin + skipped, taken}, budget, out));
    cut = {cut.begin + taken, cut.length - taken};
  }
  return {};
}

std::int64_t length_of(const Ranges& ranges) {
  std::int64_t length = 0;  // no overflow: the ranges lie in a dimension
  for (const Range& range : ranges) length += range.length;
  return length;
}

// The part of `ranges` that a placement leaves to the rank at `index` of `count`.
Result<Ranges> placed(const Ranges& ranges, const Placement& placement, Range place, ByteBudget& budget) {
  const std::int64_t count = place.length;
  const std::int64_t index = place.begin;
  const std::int64_t length = length_of(ranges);
  Ranges out;
  if (placement.kind == Placement::Kind::kShard) {
    CAIRN_TRY(append_cut(ranges, chunk_of(length, count, index), budget, out));
    return out;
  }
  const std::int64_t step = step_of(length, placement.split_factor);
  for (std::int64_t begin = 0; begin < length; begin += std::min(step, length - begin)) {
    // Each step walks through `ranges`.
    CAIRN_TRY(budget.charge(ranges.size(), sizeof(Range)));
    const Range part = chunk_of(std::min(step, length - begin), count, index);
    CAIRN_TRY(append_cut(ranges, {begin + part.begin, part.length}, budget, out));
  }
  return out;
}

// The boxes with one range of each dimension, for each combination: the last dimension changes fastest.
Result<void> multiply(const std::vector<Ranges>& dimensions, ByteBudget& budget, LocalPieces& out) {
  const std::size_t count = dimensions.size();
  std::vector<std::size_t> at(count, 0);
  Extents local(count, 0);
  while (true) {
    Extents offsets(count, 0);
    Extents sizes(count, 0);
    for (std::size_t i = 0; i < count; ++i) {
      offsets[i] = dimensions[i][at[i]].begin;
      sizes[i] = dimensions[i][at[i]].length;
    }
    CAIRN_TRY(budget.charge(sizeof(BoxSharding::Piece) + 3 * count * sizeof(std::int64_t)));
    CAIRN_TRY_ASSIGN(Box box, Box::make(std::move(offsets), std::move(sizes)));
    out.pieces.push_back({std::move(box), local});
    std::size_t i = count;
    while (i > 0) {
      --i;
      local[i] += dimensions[i][at[i]].length;
      if (++at[i] < dimensions[i].size()) break;
      at[i] = 0;
      local[i] = 0;
      if (i == 0) return {};
    }
    if (count == 0) return {};
  }
}

// The coordinate of the rank in each dimension of the mesh.
Result<Extents> coordinates_of(const Mesh& mesh, std::uint32_t rank) {
  const auto place = mesh.places.find(rank);
  if (place == mesh.places.end()) {
    return Error(ErrorCode::kCorrupt, "metadata.pkl names a rank for a tensor whose mesh lacks the rank")
        .expected("one of the " + std::to_string(mesh.places.size()) + " ranks of the mesh")
        .actual("rank " + std::to_string(rank));
  }
  Extents coordinates(mesh.shape.size(), 0);
  auto rest = static_cast<std::int64_t>(place->second);
  for (std::size_t i = mesh.shape.size(); i-- > 0;) {
    coordinates[i] = rest % mesh.shape[i];
    rest /= mesh.shape[i];
  }
  return coordinates;
}

}  // namespace

Result<LocalPieces> local_pieces(const MeshSharding& sharding, const Mesh& mesh, std::uint32_t rank,
                                 ByteBudget& budget) {
  CAIRN_TRY_ASSIGN(const Extents coordinates, coordinates_of(mesh, rank));
  std::vector<Ranges> dimensions;
  for (const std::int64_t size : sharding.global_shape) dimensions.push_back({{0, size}});
  for (std::size_t i = 0; i < sharding.placements.size(); ++i) {
    const Placement& placement = sharding.placements[i];
    if (placement.kind == Placement::Kind::kReplicate) continue;
    Ranges& ranges = dimensions[placement.dim];
    CAIRN_TRY_ASSIGN(ranges, placed(ranges, placement, {coordinates[i], mesh.shape[i]}, budget));
  }
  LocalPieces out;
  out.local_shape = Extents(dimensions.size(), 0);
  bool is_empty = false;
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    out.local_shape[i] = length_of(dimensions[i]);
    is_empty |= out.local_shape[i] == 0;
  }
  if (!is_empty) CAIRN_TRY(multiply(dimensions, budget, out));
  return out;
}

}  // namespace cairn::torch_checkpointing
