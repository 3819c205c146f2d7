// SharedCatalog: a Catalog of a save's report or of an open checkpoint.
#pragma once

#include <cairn/catalog.h>

#include <memory>
#include <string>
#include <vector>

#include "bound.h"

namespace cairn::python {

struct SharedCatalog {
  std::shared_ptr<const Catalog> catalog;  // owners: the report or the checkpoint, and Python's views
};

// (dtype code, shape, requires_grad, [(offsets, sizes, file, offset, length), ...], the recorded strides or None).
// `files`: those of the tensor's catalog.
nb::tuple tuple_of(const std::vector<std::string>& files, const CatalogTensor& tensor);
// (file or None, offset, length)
nb::tuple tuple_of(const std::vector<std::string>& files, const ItemLocation& location);

}  // namespace cairn::python
