// make_model_image: the image of a file of a safetensors model, with the metadata that torch and Cairn write.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commit/lease.h"
#include "data_file/safetensors_image.h"
#include "format/safetensors/file_set.h"

namespace cairn::checkpointer {

// All members are views: the owners outlive the image. `tensor` may lack its elements (SafetensorsImage::Item).
struct ModelItem {
  std::string_view key;
  const TensorView* tensor = nullptr;
  const Extents* offsets = nullptr;  // of the box in the whole tensor; null: the tensor is whole
};

// The entries of a header's metadata that name the save and the save's files, except for "cairn_save_id".
std::vector<std::pair<std::string, std::string>> save_metadata(const commit::SaveIdentity& save,
                                                               const safetensors::FileSet& set);

// The metadata is that of torch's HuggingFaceStorageWriter if all items have offsets, and save_metadata().
Result<data_file::SafetensorsImage> make_model_image(const commit::SaveIdentity& save, std::span<const ModelItem> items,
                                                     const safetensors::FileSet& set);

}  // namespace cairn::checkpointer
