// AssignedItem: an item that a rank writes in a save.
#pragma once

#include <cairn/box.h>

#include <cstdint>
#include <memory>

namespace cairn::save_plan {

// `index` into the rank's items, and the part of the tensor if further ranks write the rest.
struct AssignedItem {
  std::uint32_t index = 0;
  // In the coordinates of the whole tensor; null: the whole item, as nearly always. The coordinator of a large job has
  // millions of assigned items, and a Box takes a hundred bytes.
  std::shared_ptr<const Box> part;
};

}  // namespace cairn::save_plan
