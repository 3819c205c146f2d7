// make_model_image: the image of a file of a safetensors model, with the metadata that torch and Cairn write.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <span>
#include <string_view>

#include "data_file/safetensors_image.h"
#include "format/safetensors/file_set.h"

namespace cairn::checkpointer {

// All members are views: the owners outlive the image. `tensor` may lack its elements (SafetensorsImage::Item).
struct ModelItem {
  std::string_view key;
  const TensorView* tensor = nullptr;
  const Extents* offsets = nullptr;  // of the box in the whole tensor; null: the tensor is whole
};

// The metadata is that of torch's HuggingFaceStorageWriter if all items have offsets, and "cairn_set".
Result<data_file::SafetensorsImage> make_model_image(const SaveId& save_id, std::span<const ModelItem> items,
                                                     const safetensors::FileSet& set);

}  // namespace cairn::checkpointer
