// SharedCatalog: a Catalog with whoever keeps it alive: a save's report or an open checkpoint.
#pragma once

#include <cairn/catalog.h>

#include <memory>

namespace cairn::python {

struct SharedCatalog {
  std::shared_ptr<const Catalog> catalog;  // owners: the report or checkpoint it came from, and Python's views of it
};

}  // namespace cairn::python
