// BoxTiling: whether boxes make up a block: each of its elements lies in one of them, and in no second one.
//
// Pure but for the process's seed (SeededHash). For n boxes in d dimensions n * d steps, however they are cut.
#pragma once

#include <cairn/box.h>

#include <cstdint>
#include <span>

namespace cairn::plan {

// `boxes` are numbers, per box its offsets, then its sizes, as in CatalogTensor::boxes; each a valid Box within
// `block`. Always true for a tiling. For what is none it is true with a chance of at most 2^-54, which nobody can raise
// without knowing the seed.
bool is_tiling(const Box& block, std::span<const std::int64_t> boxes);

}  // namespace cairn::plan
