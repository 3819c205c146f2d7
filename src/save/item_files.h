// ItemFile: the items of one data file of a rank.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "data_file/file_image.h"

namespace cairn::checkpointer {

struct ItemFile {
  std::vector<std::size_t> indices;            // of the items, in the order of the file
  std::vector<data_file::ItemSource> sources;  // the items
};

// The files that a rank writes for `sources`, in the order of the file numbers. The coordinator's layout computes an
// equal order of files and items (save_layout.h). The memory of `sources` outlives the result.
std::vector<ItemFile> item_files(std::span<const data_file::ItemSource> sources, bool file_per_item);

}  // namespace cairn::checkpointer
