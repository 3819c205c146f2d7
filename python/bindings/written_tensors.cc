#include "written_tensors.h"

#include <algorithm>

#include "bound.h"
#include "call_options.h"
#include "new_reference.h"

namespace cairn::python {

nb::list WrittenTensors::tensors() const {
  nb::list tensors;
  for (const Written& written : written_) tensors.append(written.tensor);
  return tensors;
}

nb::object WrittenTensors::tensor_of(std::size_t entry) const {
  const auto found = std::ranges::lower_bound(written_, entry, {}, &Written::entry);  // added in their order
  return found == written_.end() || found->entry != entry ? nb::object() : found->tensor;
}

std::vector<std::string> WrittenTensors::keys_of_replaced(const StateDict& state) const {
  const nb::str storage_of("untyped_storage");
  std::vector<std::string> keys;
  for (const auto& [entry, tensor, storage] : written_) {
    const nb::object now = checked(PyObject_CallMethodObjArgs(tensor.ptr(), storage_of.ptr(), nullptr));
    // Two objects may stand for one storage.
    const bool is_same = now.is(storage) || now.attr("_cdata").equal(storage.attr("_cdata"));
    if (!is_same) keys.push_back(state.entries().at(entry).fqn);
  }
  return keys;
}

void bind_written_tensors(nb::module_& module) {
  nb::class_<WrittenTensors>(module, "WrittenTensors")
      .def(nb::init<>())
      .def("add", &WrittenTensors::add)
      .def("tensors", &WrittenTensors::tensors)
      .def("tensor_of",
           [](const WrittenTensors& self, std::size_t entry) {
             nb::object tensor = self.tensor_of(entry);
             return tensor.is_valid() ? tensor : nb::object(nb::none());
           })
      .def("keys_of_replaced",
           [](const WrittenTensors& self, const StateDict& state) { return strings(self.keys_of_replaced(state)); });
}

}  // namespace cairn::python
