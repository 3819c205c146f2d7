// CatalogBuilder: builds the catalog of a save, item by item.
#pragma once

#include <cairn/catalog.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "core/extents_table.h"
#include "plan/key_numbers.h"
#include "plan/local_plan.h"

namespace cairn::save_plan {

class CatalogBuilder {
 public:
  // `strides` is the table of the items, and outlives the builder.
  explicit CatalogBuilder(const ExtentsTable& strides) : strides_(strides) {}

  // The next items are those of another rank, whose keys may be in the order of the rank before.
  void begin_rank() { numbers_.begin_rank(); }
  // Adds an item and its location. Returns whether the item is the first with its key. Items of one tensor agree on
  // dtype and shape. The memory of `item.fqn` outlives the builder.
  bool add(const plan::LocalItem& item, const Box& box, const ItemLocation& location);
  // Adds the path of a key, unless the path is empty; once for each key, in the order of the keys.
  void add_path(std::string_view fqn, const Path& path) {
    if (!path.empty()) catalog_.paths.emplace_back(std::string(fqn), path);
  }

  Catalog& catalog() { return catalog_; }

 private:
  const ExtentsTable& strides_;
  Catalog catalog_;
  plan::KeyNumbers numbers_;  // of the tensors: the index in the catalog
};

}  // namespace cairn::save_plan
