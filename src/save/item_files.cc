#include "save/item_files.h"

#include <utility>

#include "plan/file_assignment.h"

namespace cairn::checkpointer {

std::vector<ItemFile> item_files(std::span<const data_file::ItemSource> sources, bool file_per_item) {
  std::vector<bool> is_value;
  is_value.reserve(sources.size());
  for (const data_file::ItemSource& source : sources) {
    is_value.push_back(source.kind == manifest::TrailerItem::Kind::kValue);
  }
  std::vector<ItemFile> files;
  for (std::vector<std::size_t>& indices : plan::assign_files(is_value, file_per_item)) {
    ItemFile& file = files.emplace_back();
    file.sources.reserve(indices.size());
    for (const std::size_t index : indices) file.sources.push_back(sources[index]);
    file.indices = std::move(indices);
  }
  return files;
}

}  // namespace cairn::checkpointer
