#include "save/model_image.h"

#include <algorithm>

#include "commit/model/model_files.h"
#include "format/safetensors/save_order.h"
#include "format/safetensors/sharding_info.h"

namespace cairn::checkpointer {

std::vector<std::pair<std::string, std::string>> save_metadata(const commit::SaveIdentity& save,
                                                               const safetensors::FileSet& set) {
  return {{std::string(safetensors::kFileSetName), safetensors::render_file_set(set)},
          {std::string(safetensors::kSaveOrderName), safetensors::render_save_order(commit::order_of_save(save))}};
}

Result<data_file::SafetensorsImage> make_model_image(const commit::SaveIdentity& save, std::span<const ModelItem> items,
                                                     const safetensors::FileSet& set) {
  std::vector<data_file::SafetensorsImage::Item> tensors;
  std::vector<std::pair<std::string_view, const Extents*>> boxes;
  tensors.reserve(items.size());
  for (const ModelItem& item : items) {
    tensors.push_back({item.key, item.tensor});
    if (item.offsets != nullptr) boxes.emplace_back(item.key, item.offsets);
  }
  std::vector<std::pair<std::string, std::string>> metadata;
  if (boxes.size() == items.size()) {
    CAIRN_TRY_ASSIGN(std::string sharding, safetensors::render_sharding_info(boxes));
    metadata.emplace_back(safetensors::kShardingInfoName, std::move(sharding));
    metadata.emplace_back("DCP_VERSION", "1.0");
  }
  for (auto& entry : save_metadata(save, set)) metadata.push_back(std::move(entry));
  return data_file::SafetensorsImage::make(save.save_id, tensors, std::move(metadata));
}

}  // namespace cairn::checkpointer
