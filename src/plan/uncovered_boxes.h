// UncoveredBoxes: the parts of a block that lie in no box of a list.
//
// Pure.
#pragma once

#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace cairn::plan {

// Boxes without common elements that make up the rest of `block`. `boxes` are numbers: per box its offsets, then its
// sizes, as in CatalogTensor::boxes; each a valid Box within `block`. Nullopt if more than `parts_max` parts would be
// held at a time: a bound for boxes read from a file. Takes at most n * parts_max * d steps for n boxes in d
// dimensions.
std::optional<std::vector<Box>> uncovered_boxes(const Box& block, std::span<const std::int64_t> boxes,
                                                std::size_t parts_max);

}  // namespace cairn::plan
