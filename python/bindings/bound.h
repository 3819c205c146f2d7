// The parts of the extension module: each function binds a single concept.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace cairn::python {

void bind_dtypes(nb::module_& module);
void bind_values(nb::module_& module);
void bind_catalog(nb::module_& module);
void bind_state_dict(nb::module_& module);
void bind_held_storages(nb::module_& module);
void bind_written_tensors(nb::module_& module);
void bind_flattening(nb::module_& module);
void bind_describe(nb::module_& module);
void bind_collectives(nb::module_& module);
void bind_checkpoint(nb::module_& module);
void bind_planned_load(nb::module_& module);
void bind_diff(nb::module_& module);
void bind_convert(nb::module_& module);
void bind_save_steps(nb::module_& module);
void bind_async_checkpointer(nb::module_& module);
void bind_in_flight(nb::module_& module);
void bind_events(nb::module_& module);
void bind_progress(nb::module_& module);
void bind_repair(nb::module_& module);
void bind_retention(nb::module_& module);
void bind_managed_run(nb::module_& module);
void bind_run_cost(nb::module_& module);
void bind_exit_status(nb::module_& module);

}  // namespace cairn::python
