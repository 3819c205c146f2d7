// ProgressWatch: the engine's works, for a thread of Python that draws.
#include <cairn/progress.h>
#include <nanobind/nanobind.h>

#include <chrono>

#include "bound.h"
#include "taken_queue.h"
#include "text.h"

namespace cairn::python {
namespace {

nb::tuple fields_of(const WorkInProgress& work) {
  const bool is_running = work.state == WorkInProgress::State::kRunning;
  const nb::object succeeded = is_running ? nb::none() : nb::cast(work.state == WorkInProgress::State::kSucceeded);
  return nb::make_tuple(work.id, to_str(name_of(work.kind)), to_str(name_of(work.unit)), to_bytes(work.directory),
                        work.rank, succeeded, std::chrono::duration<double>(work.elapsed).count(), work.done,
                        work.total);
}

using PythonProgressWatch = TakenQueue<ProgressWatch, fields_of>;

}  // namespace

void bind_progress(nb::module_& module) {
  nb::class_<PythonProgressWatch>(module, "ProgressWatch")
      .def(nb::init<>())
      .def("take", &PythonProgressWatch::take)
      .def("close", &PythonProgressWatch::close)
      .def("is_closed", &PythonProgressWatch::is_closed);
}

}  // namespace cairn::python
