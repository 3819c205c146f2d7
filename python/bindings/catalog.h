// SharedCatalog: a Catalog of a save's report or of an open checkpoint.
#pragma once

#include <cairn/catalog.h>

#include <memory>

namespace cairn::python {

struct SharedCatalog {
  std::shared_ptr<const Catalog> catalog;  // owners: the report or the checkpoint, and Python's views
};

}  // namespace cairn::python
