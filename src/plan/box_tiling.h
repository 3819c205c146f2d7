// BoxTiling: whether boxes tile a block: each element of the block lies in exactly one box.
//
// Pure except for the process's seed (SeededHash). Takes n * d steps for n boxes in d dimensions, for every way to cut.
#pragma once

#include <cairn/tensor.h>

#include <cstdint>
#include <span>

namespace cairn::plan {

// `boxes` are numbers: per box its offsets, then its sizes, as in CatalogTensor::boxes; each a valid Box within
// `block`. Always true for a tiling. For any other list of boxes the result is true with a probability of at most
// 2^-54, and an attacker who does not know the seed cannot raise the probability.
bool is_tiling(const Box& block, std::span<const std::int64_t> boxes);

}  // namespace cairn::plan
