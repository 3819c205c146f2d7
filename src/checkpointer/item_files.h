// ItemFile: what one data file of a rank holds.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "data_file/file_image.h"

namespace cairn::checkpointer {

struct ItemFile {
  std::vector<std::size_t> indices;            // of the items, in the order in which they lie in the file
  std::vector<data_file::ItemSource> sources;  // the items
};

// The files that a rank with these items writes, in the order of their numbers. The coordinator's layout gives the
// items the same order (save_layout.h). The memory of `sources` outlives the result.
std::vector<ItemFile> item_files(std::span<const data_file::ItemSource> sources, bool file_per_item);

}  // namespace cairn::checkpointer
