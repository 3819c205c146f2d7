#include "catalog.h"

#include "bound.h"
#include "call_options.h"
#include "errors.h"
#include "text.h"
#include "values.h"

namespace cairn::python {
namespace {

const std::string& fqn_at(const Catalog& catalog, const Catalog::KeyRef& key) {
  return key.is_tensor ? catalog.tensors[key.index].fqn : catalog.values[key.index].fqn;
}

// Leaves out attributes for which `make_object` raises LookupError.
nb::dict extra_of(const Catalog& catalog, nb::handle make_object) {
  nb::dict extra;
  for (const auto& [name, value] : catalog.extra) {
    try {
      extra[to_str(name)] = from_value(value, make_object);
    } catch (const nb::python_error& error) {
      if (!error.matches(PyExc_LookupError)) throw;
    }
  }
  return extra;
}

}  // namespace

nb::tuple tuple_of(const std::vector<std::string>& files, const ItemLocation& location) {
  // Length 0: the storage has no bytes of the chunk, and the chunk has no file.
  const nb::object file = location.length == 0 ? nb::object(nb::none()) : to_str(files.at(location.file));
  return nb::make_tuple(file, location.offset, location.length);
}

nb::tuple tuple_of(const std::vector<std::string>& files, const CatalogTensor& tensor) {
  const std::size_t dimensions = tensor.shape.size();
  nb::list chunks;
  for (std::size_t i = 0; i < tensor.chunk_count(); ++i) {
    const std::int64_t* box = tensor.boxes.data() + 2 * dimensions * i;
    const nb::tuple place = tuple_of(files, tensor.locations[i]);
    chunks.append(nb::make_tuple(from_extents(box, dimensions), from_extents(box + dimensions, dimensions), place[0],
                                 place[1], place[2]));
  }
  nb::object strides = nb::none();
  if (tensor.strides) strides = from_extents(tensor.strides->data(), tensor.strides->size());
  return nb::make_tuple(static_cast<int>(tensor.dtype), from_extents(tensor.shape.data(), dimensions),
                        tensor.requires_grad, chunks, strides);
}

void bind_catalog(nb::module_& module) {
  nb::class_<SharedCatalog>(module, "Catalog")
      .def("__len__", [](const SharedCatalog& self) { return self.catalog->keys.size(); })
      .def("__contains__",
           [](const SharedCatalog& self, const nb::str& fqn) {
             const std::string name = to_utf8(fqn);
             return self.catalog->find_tensor(name) != nullptr || self.catalog->find_value(name) != nullptr;
           })
      .def("keys",
           [](const SharedCatalog& self) {
             nb::list keys;
             for (const Catalog::KeyRef& key : self.catalog->keys) keys.append(to_str(fqn_at(*self.catalog, key)));
             return keys;
           })
      .def("tensor",
           [](const SharedCatalog& self, const nb::str& fqn) -> nb::object {
             const CatalogTensor* tensor = self.catalog->find_tensor(to_utf8(fqn));
             return tensor == nullptr ? nb::object(nb::none()) : tuple_of(self.catalog->files, *tensor);
           })
      .def("value",
           [](const SharedCatalog& self, const nb::str& fqn) -> nb::object {
             const CatalogValue* value = self.catalog->find_value(to_utf8(fqn));
             return value == nullptr ? nb::object(nb::none()) : tuple_of(self.catalog->files, value->location);
           })
      .def("nearest_keys",
           [](const SharedCatalog& self, const nb::str& fqn, std::size_t count_max) {
             return strings(self.catalog->nearest_keys(to_utf8(fqn), count_max));
           })
      .def("paths",
           [](const SharedCatalog& self) {
             nb::dict paths;
             for (const auto& [fqn, path] : self.catalog->paths) paths[to_str(fqn)] = from_path(path);
             return paths;
           })
      .def("transforms",
           [](const SharedCatalog& self) {
             nb::dict transforms;
             for (const auto& [fqn, names] : self.catalog->transforms) transforms[to_str(fqn)] = to_str(names);
             return transforms;
           })
      .def(
          "extra",
          [](const SharedCatalog& self, nb::handle make_object) { return extra_of(*self.catalog, make_object); },
          nb::arg("make_object"))
      .def_prop_ro("files",
                   [](const SharedCatalog& self) {
                     nb::list files;
                     for (const std::string& file : self.catalog->files) files.append(to_str(file));
                     return files;
                   })
      .def_prop_ro("version", [](const SharedCatalog& self) { return to_str_or_none(self.catalog->version); })
      .def_prop_ro("checkpoint_id",
                   [](const SharedCatalog& self) { return to_str_or_none(self.catalog->checkpoint_id); })
      .def_prop_ro("save_id", [](const SharedCatalog& self) { return to_str_or_none(self.catalog->save_id); });
}

}  // namespace cairn::python
