// ProgressWatch: the engine's works, for a thread of Python that draws. The engine's threads never wait for Python's
// lock.
#include <cairn/progress.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "bound.h"
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

class PythonProgressWatch {
 public:
  PythonProgressWatch() : watch_(std::make_unique<ProgressWatch>()) {}
  ~PythonProgressWatch() {
    // In a child made by fork a lock of the watch may be held for ever: the memory of the watch is not freed.
    if (getpid() != process_) (void)watch_.release();
  }
  PythonProgressWatch(const PythonProgressWatch&) = delete;
  PythonProgressWatch& operator=(const PythonProgressWatch&) = delete;

  nb::list take(std::uint64_t time_ms) {
    std::vector<WorkInProgress> works;
    {
      const nb::gil_scoped_release released;
      works = watch_->take(std::chrono::milliseconds(time_ms));
    }
    nb::list result;
    for (const WorkInProgress& work : works) result.append(fields_of(work));
    return result;
  }
  void close() {
    const nb::gil_scoped_release released;
    watch_->close();
  }
  bool is_closed() const { return watch_->is_closed(); }

 private:
  const pid_t process_ = getpid();
  std::unique_ptr<ProgressWatch> watch_;
};

}  // namespace

void bind_progress(nb::module_& module) {
  nb::class_<PythonProgressWatch>(module, "ProgressWatch")
      .def(nb::init<>())
      .def("take", &PythonProgressWatch::take)
      .def("close", &PythonProgressWatch::close)
      .def("is_closed", &PythonProgressWatch::is_closed);
}

}  // namespace cairn::python
