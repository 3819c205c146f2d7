// FileAssignment: the data file of each item, and the order of the items in a file.
//
// Pure. Tensors come first and keep their order. Values come last: a value that grows moves no tensor.
#pragma once

#include <cstddef>
#include <vector>

namespace cairn::plan {

// Indices into the items, per file. Without items, no file.
using FileAssignment = std::vector<std::vector<std::size_t>>;

// `is_value[i]` is true if item i is a value, false if it is a tensor. One file for all items, or one file per item.
FileAssignment assign_files(const std::vector<bool>& is_value, bool file_per_item);

}  // namespace cairn::plan
