// AssignedItem: an item that a rank writes in a save.
#pragma once

#include <cairn/result.h>
#include <cairn/tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "format/manifest/varint.h"

namespace cairn::save_plan {

// `index` into the rank's items, and the part of the tensor if other ranks write the rest.
struct AssignedItem {
  std::uint32_t index = 0;
  // In the coordinates of the whole tensor; null: the whole item, as nearly always. The coordinator of a large job has
  // millions of assigned items, and a Box takes a hundred bytes.
  std::shared_ptr<const Box> part;
};

// The reader fails with kCorrupt for bytes that append_assigned_items() cannot have written.
void append_assigned_items(std::string& message, std::span<const AssignedItem> items);
Result<std::vector<AssignedItem>> read_assigned_items(manifest::CodedReader& reader);

}  // namespace cairn::save_plan
