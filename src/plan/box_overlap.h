// BoxOverlap: whether any two of many boxes have an element in common.
//
// Pure. The boxes come as numbers, per box its offsets, then its sizes, as in CatalogTensor::boxes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace cairn::plan {

// Two boxes, by their places in the list, the lower one first.
using BoxPair = std::pair<std::size_t, std::size_t>;

// A pair of boxes that share an element, if there is any; always the same one for the same list. Each box must be a
// valid Box of this many dimensions. A box without elements shares none; two boxes without dimensions always share one.
//
// For n boxes in d dimensions, dimensions in which all boxes agree not counted: n log n steps if d is 1 or 2, and
// n log^(d-1) n beyond, however the tensor is cut. After about `steps_max` of them the search gives up and finds
// nothing: for boxes that come from a file.
std::optional<BoxPair> find_overlap(std::size_t dimensions, std::span<const std::int64_t> boxes, std::size_t count,
                                    std::size_t steps_max = SIZE_MAX);

}  // namespace cairn::plan
