// BoxOverlap: whether any two boxes of a list have an element in common.
//
// Pure. The boxes are numbers: per box its offsets, then its sizes, as in CatalogTensor::boxes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace cairn::plan {

// The places of two boxes in the list, the lower place first.
using BoxPair = std::pair<std::size_t, std::size_t>;

// A pair of boxes with a common element, or nullopt; the result depends only on the list. Each box must be a valid Box
// with `dimensions` dimensions. A box without elements overlaps no box; two boxes with zero dimensions always overlap.
//
// Cost for n boxes: let d be the number of dimensions in which the boxes differ. The search takes n log n steps if d is
// 1 or 2, and n log^(d-1) n steps for a larger d, for every way to cut the tensor. After about `steps_max` steps the
// search gives up and returns nullopt: a bound for boxes read from a file.
std::optional<BoxPair> find_overlap(std::size_t dimensions, std::span<const std::int64_t> boxes, std::size_t count,
                                    std::size_t steps_max = SIZE_MAX);

}  // namespace cairn::plan
