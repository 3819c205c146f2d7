// The extension module cairn._engine: the C++ engine for package cairn. No other package uses the module.
#include <cairn/tensor.h>
#include <cairn/version.h>

#include "bound.h"
#include "errors.h"
#include "text.h"

namespace cairn::python {

void bind_dtypes(nb::module_& module) {
  nb::list names;  // by code
  nb::list item_sizes;
  for (std::uint8_t code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    names.append(to_str(name_of(dtype)));
    item_sizes.append(nb::int_(item_bytes(dtype)));
  }
  module.attr("DTYPE_NAMES") = nb::tuple(names);
  module.attr("DTYPE_ITEM_BYTES") = nb::tuple(item_sizes);
}

}  // namespace cairn::python

NB_MODULE(_engine, module) {
  module.attr("__version__") = cairn::python::to_str(cairn::kVersion);
  // The report at exit lists the objects that a program still holds when Python ends: a logger that has a handler of a
  // script's own class keeps the script's global variables, futures of saves among them. These objects are no leaks.
  nanobind::set_leak_warnings(false);
  cairn::python::register_error_translator();
  cairn::python::bind_dtypes(module);
  cairn::python::bind_values(module);
  cairn::python::bind_catalog(module);
  cairn::python::bind_state_dict(module);
  cairn::python::bind_held_storages(module);
  cairn::python::bind_written_tensors(module);
  cairn::python::bind_flattening(module);
  cairn::python::bind_describe(module);
  cairn::python::bind_collectives(module);
  cairn::python::bind_checkpoint(module);
  cairn::python::bind_planned_load(module);
  cairn::python::bind_diff(module);
  cairn::python::bind_convert(module);
  cairn::python::bind_save_steps(module);
  cairn::python::bind_async_checkpointer(module);
  cairn::python::bind_in_flight(module);
  cairn::python::bind_events(module);
  cairn::python::bind_progress(module);
  cairn::python::bind_repair(module);
  cairn::python::bind_retention(module);
  cairn::python::bind_managed_run(module);
  cairn::python::bind_run_cost(module);
  cairn::python::bind_exit_status(module);
}
