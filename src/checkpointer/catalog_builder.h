// CatalogBuilder: builds the catalog of a save, item by item.
#pragma once

#include <cairn/catalog.h>

#include <string_view>
#include <unordered_map>

#include "plan/local_plan.h"

namespace cairn::checkpointer {

class CatalogBuilder {
 public:
  // Adds an item and its location. Items of one tensor agree on dtype and shape. `path` is empty if the key has no
  // path. The memory of `item.fqn` outlives the builder.
  void add(const plan::LocalItem& item, const Box& box, const Path& path, const ItemLocation& location);

  Catalog& catalog() { return catalog_; }

 private:
  Catalog catalog_;
  std::unordered_map<std::string_view, std::size_t> tensors_;  // index in the catalog, by name
};

}  // namespace cairn::checkpointer
