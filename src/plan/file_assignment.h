// FileAssignment: which items go into which data file, and in which order.
//
// Pure. Tensors come first and keep their order; values come last, so that a value that grows moves nothing else.
#pragma once

#include <cstddef>
#include <vector>

namespace cairn::plan {

// Indices into the items, per file. No items: no file.
using FileAssignment = std::vector<std::vector<std::size_t>>;

// `is_value[i]` tells a value from a tensor. One file for all, or one for each.
FileAssignment assign_files(const std::vector<bool>& is_value, bool file_per_item);

}  // namespace cairn::plan
