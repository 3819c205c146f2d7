// simulate_run.
#include <cairn/run_cost.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "bound.h"
#include "errors.h"

namespace cairn::python {
namespace {

// `lengths`: the work, and the elapsed time at which a run is given up, in seconds. `costs`: seconds by which a save
// delays the training, until it is durable, and of a restart. `failures`: the times of the failures, the mean time
// between random ones, the expected one, and the seed. `bounds` is of the automatic interval.
nb::tuple replay_run(const nb::tuple& lengths, const nb::tuple& costs, const nb::tuple& failures,
                     std::optional<double> interval, const nb::tuple& bounds) {
  SimulatedRun run;
  run.work = nb::cast<double>(lengths[0]);
  run.elapsed_max = nb::cast<double>(lengths[1]);
  run.costs = {nb::cast<double>(costs[0]), nb::cast<double>(costs[1]), nb::cast<double>(costs[2])};
  run.failures = nb::cast<std::vector<double>>(failures[0]);
  run.between_failures = nb::cast<double>(failures[1]);
  run.expected_between_failures = nb::cast<double>(failures[2]);
  run.seed = nb::cast<std::uint64_t>(failures[3]);
  run.interval = interval;
  run.bounds = {nb::cast<double>(bounds[0]), nb::cast<double>(bounds[1])};
  Result<RunReport> replayed = Error(ErrorCode::kInternal, "not replayed");
  {
    const nb::gil_scoped_release released;
    replayed = simulate_run(run);
  }
  const RunReport report = unwrap(std::move(replayed));
  return nb::make_tuple(report.elapsed, report.work, report.saves, report.redone, report.restarts, report.save_count,
                        report.failure_count, report.has_ended, report.good_share());
}

}  // namespace

void bind_run_cost(nb::module_& module) {
  module.def("simulate_run", &replay_run, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
}

}  // namespace cairn::python
