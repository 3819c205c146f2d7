// PlannedLoad: a load in two steps. The second runs on a thread of Python's, without Python's lock.
#include <cairn/planned_load.h>

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "archive_taker.h"
#include "bound.h"
#include "call_options.h"
#include "errors.h"
#include "load_outcome.h"

namespace cairn::python {
namespace {

// Owns what the engine reads from and writes into, as far as the engine knows.
struct PythonPlannedLoad {
  std::shared_ptr<Checkpoint> checkpoint;
  nb::object state;  // a StateDict
  PlannedLoad load;
};

std::unique_ptr<PythonPlannedLoad> plan(std::shared_ptr<Checkpoint> checkpoint, nb::object state,
                                        const nb::kwargs& keywords) {
  LoadOptions options = load_options_of(keywords);
  auto& targets = nb::cast<StateDict&>(state);
  std::optional<ArchiveTaker> taker;
  if (keywords.contains("take_archive")) options.take_archive = taker.emplace(keywords["take_archive"]).function();
  try {
    PlannedLoad load = without_lock(options, keywords, [&] { return plan_load(*checkpoint, targets, options); });
    return std::make_unique<PythonPlannedLoad>(
        PythonPlannedLoad{std::move(checkpoint), std::move(state), std::move(load)});
  } catch (const Error& error) {
    if (taker) taker->rethrow(options.collectives == nullptr);
    rethrow_with_keys(error, *checkpoint, targets, options);
  }
}

// (conversions, warnings without the checkpoint's damage). `filled(entry, exception or None)` is called by the reading
// threads, one at a time.
nb::tuple run_load(PythonPlannedLoad& self, const nb::callable& filled, const std::vector<std::size_t>& order) {
  const auto tell = [&filled](std::size_t entry, const Result<void>& outcome) {
    const nb::gil_scoped_acquire held;
    try {
      filled(entry, outcome ? nb::object(nb::none()) : exception_of(outcome.error()));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable(filled);
    }
  };
  std::optional<Result<LoadReport>> ended;
  {
    const nb::gil_scoped_release released;
    ended.emplace(self.load.run(tell, order));
  }
  LoadReport report = unwrap(std::move(*ended));
  if (const auto damage = self.checkpoint->damage()) std::erase(report.warnings, *damage);
  return nb::make_tuple(conversions_of(report), strings(report.warnings));
}

}  // namespace

void bind_planned_load(nb::module_& module) {
  nb::class_<PythonPlannedLoad>(module, "PlannedLoad")
      .def_prop_ro("missing", [](const PythonPlannedLoad& self) { return strings(self.load.missing()); })
      .def("run", &run_load)
      .def("cancel", [](PythonPlannedLoad& self) { self.load.cancel(); });
  module.def("plan_load", &plan);
}

}  // namespace cairn::python
