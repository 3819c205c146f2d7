// ManagedRun: the decisions of cairn.CheckpointManager. Python's lock is released during each call.
#include <cairn/managed_run.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bound.h"
#include "call_options.h"
#include "errors.h"
#include "interrupt.h"
#include "retention_rule.h"
#include "text.h"

namespace cairn::python {
namespace {

using std::chrono::milliseconds;

milliseconds of_seconds(double seconds) {
  return std::chrono::duration_cast<milliseconds>(std::chrono::duration<double>(seconds));
}

// An object of Python that threads of the engine use and may be the last to own. A thread that was left behind in a
// call that hangs may come back while the interpreter ends: taking the lock would then end the process.
class HeldObject {
 public:
  explicit HeldObject(nb::object object) : object_(std::move(object)) {}
  ~HeldObject() {
    if (!is_usable()) {
      object_.release();
      return;
    }
    const nb::gil_scoped_acquire lock;
    object_.reset();
  }
  HeldObject(const HeldObject&) = delete;
  HeldObject& operator=(const HeldObject&) = delete;
  static bool is_usable() { return Py_IsInitialized() != 0; }
  const nb::object& get() const { return object_; }

 private:
  nb::object object_;
};

// The methods of a Python object as the engine's RunStore.
class PythonStore : public RunStore {
 public:
  explicit PythonStore(nb::object calls) : calls_(std::move(calls)) {}

  Result<void> set(const std::string& key, const std::string& value) override {
    return ask([&]() -> Result<void> {
      calls_.get().attr("set")(to_str(key), to_str(value));
      return {};
    });
  }

  Result<std::optional<std::vector<std::string>>> get(const std::vector<std::string>& keys) override {
    return ask([&]() -> Result<std::optional<std::vector<std::string>>> {
      nb::list names;
      for (const std::string& key : keys) names.append(to_str(key));
      const nb::object values = calls_.get().attr("get")(names);
      if (values.is_none()) return std::optional<std::vector<std::string>>();
      return std::optional(nb::cast<std::vector<std::string>>(values));
    });
  }

  Result<void> remove(const std::string& key) override {
    return ask([&]() -> Result<void> {
      calls_.get().attr("remove")(to_str(key));
      return {};
    });
  }

 private:
  template <typename Work>
  auto ask(Work&& work) -> decltype(work()) {
    if (!HeldObject::is_usable()) return Error(ErrorCode::kUnavailable, "the interpreter ends");
    const nb::gil_scoped_acquire lock;
    try {
      return work();
    } catch (nb::python_error& error) {
      return Error(ErrorCode::kUnavailable, std::string("the store of the process group: ") + error.what());
    } catch (const nb::cast_error&) {
      return Error(ErrorCode::kInternal, "the store of the process group has returned no texts");
    }
  }

  HeldObject calls_;
};

std::function<void(const Error&)> warning_calls(nb::object warn) {
  return [held = std::make_shared<HeldObject>(std::move(warn))](const Error& error) {
    if (!HeldObject::is_usable()) return;
    const nb::gil_scoped_acquire lock;
    try {
      held->get()(exception_of(error));
    } catch (nb::python_error& raised) {
      raised.discard_as_unraisable("the warning of a CheckpointManager");
    }
  };
}

// `schedule`: steps, seconds, automatic, least and greatest seconds, seconds between failures.
SaveSchedule schedule_of(const nb::tuple& schedule) {
  SaveSchedule result;
  result.every_steps = nb::cast<std::optional<std::uint64_t>>(schedule[0]);
  const auto every = nb::cast<std::optional<double>>(schedule[1]);
  if (every) result.every = of_seconds(*every);
  result.automatic = nb::cast<bool>(schedule[2]);
  result.bounds = {nb::cast<double>(schedule[3]), nb::cast<double>(schedule[4])};
  result.expected_between_failures = nb::cast<double>(schedule[5]);
  return result;
}

ManagedRunOptions options_of(const nb::tuple& settings) {
  ManagedRunOptions options;
  options.schedule = schedule_of(nb::cast<nb::tuple>(settings[0]));
  options.name = to_utf8(settings[1]);
  if (!settings[2].is_none()) options.keep = rule_of(nb::cast<nb::tuple>(settings[2]));
  options.adopt = nb::cast<bool>(settings[3]);
  options.failures_in_a_row = nb::cast<std::uint32_t>(settings[4]);
  options.wait_for_saves = of_seconds(nb::cast<double>(settings[5]));
  options.agreement_deadline = of_seconds(nb::cast<double>(settings[6]));
  options.stop_signals = nb::cast<std::vector<int>>(settings[7]);
  options.uncalled_before = nb::cast<std::vector<int>>(settings[8]);
  return options;
}

class PythonManagedRun {
  // Runs `work` without Python's lock, and raises its error. In the one thread that makes the calls of a rank.
  template <typename Work>
  auto call(Work&& work) {
    Interrupt interrupt;
    poll_ = interrupt.poll();
    auto result = [&] {
      const nb::gil_scoped_release released;
      return work();
    }();
    poll_ = {};
    interrupt.rethrow(result);
    if (collectives_.is_none()) return unwrap(std::move(result));
    return nb::cast<PythonCollectives&>(collectives_).unwrap(std::move(result));
  }

  // As call(), from any thread, for work that waits for nothing: Ctrl-C is for the waits of call().
  template <typename Work>
  static auto ask(Work&& work) {
    auto result = [&] {
      const nb::gil_scoped_release released;
      return work();
    }();
    return unwrap(std::move(result));
  }

  ManagedRun& run() {
    if (is_closed_) throw Error(ErrorCode::kInvalidArgument, "the CheckpointManager is closed");
    return *run_;
  }

 public:
  // `settings`: the schedule, the name of a step's directory, the rule or None, whether it adopts, the failures in a
  // row, the waits for saves in flight and for the answers of ranks in seconds, the signals of a stop, and those of
  // them whose handler before is not called.
  PythonManagedRun(const nb::bytes& root, const nb::tuple& settings, nb::object collectives, nb::object store,
                   nb::object warn)
      : collectives_(std::move(collectives)) {
    ManagedRunOptions options = options_of(settings);
    options.warn = warning_calls(std::move(warn));
    if (!collectives_.is_none()) options.collectives = &nb::cast<PythonCollectives&>(collectives_).engine();
    if (!store.is_none()) options.store = std::make_shared<PythonStore>(std::move(store));
    options.interrupted = [this] { return poll_ && poll_(); };
    const std::filesystem::path path = to_filesystem_path(root);
    run_ = call([&] { return ManagedRun::open(path, std::move(options)); });
  }

  ~PythonManagedRun() {
    const nb::gil_scoped_release released;  // the threads of the run may be waiting for Python's lock
    run_.reset();
  }
  PythonManagedRun(const PythonManagedRun&) = delete;
  PythonManagedRun& operator=(const PythonManagedRun&) = delete;

  // None, or the directory. `reason`: None, or why the last directory can't be loaded.
  nb::object next_checkpoint(const nb::object& reason) {
    std::optional<Error> fault;
    if (!reason.is_none()) fault = reason_of(nb::cast<nb::tuple>(reason));
    const auto directory = call([&] { return run().next_checkpoint(fault); });
    return directory ? nb::object(to_bytes(*directory)) : nb::none();
  }

  std::uint64_t resumed() { return run().resumed(); }

  int due(std::uint64_t step) {
    return static_cast<int>(call([&] { return run().due(step); }));
  }

  void request_stop() {
    ManagedRun& open = run();
    ask([&] { return open.request_stop(); });
  }

  // `waited`: seconds, for the save before.
  nb::tuple begin(std::uint64_t step, const std::map<std::string, double>& metrics, nb::handle notes, bool is_forced,
                  double waited) {
    const ManagedSave save{.metrics = metrics,
                           .notes = to_utf8(notes),
                           .is_forced = is_forced,
                           .waited = std::chrono::duration<double>(waited)};
    const SaveStart start = call([&] { return run().begin(step, save); });
    return nb::make_tuple(to_bytes(start.directory), to_str(start.notes));
  }

  // Also after close(): a save may end later than the manager.
  void began() { run_->began(); }
  void dropped() { run_->dropped(); }

  // `reason`: None, or why the save has failed.
  void ended(const nb::object& reason) {
    std::optional<Error> fault;
    if (!reason.is_none()) fault = reason_of(nb::cast<nb::tuple>(reason));
    const nb::gil_scoped_release released;
    run_->ended(fault);
  }

  std::vector<std::uint64_t> steps() {
    return ask([&] { return run_->steps(); });
  }
  std::optional<std::uint64_t> latest_step() {
    return ask([&] { return run_->latest_step(); });
  }
  std::optional<std::uint64_t> best_step(const std::string& metric, bool largest) {
    const auto order = largest ? RetentionRule::Best::Order::kMax : RetentionRule::Best::Order::kMin;
    return ask([&] { return run_->best_step(metric, order); });
  }
  std::map<std::string, double> metrics(std::uint64_t step) {
    return ask([&] { return run_->metrics(step); });
  }
  nb::bytes directory_of(std::uint64_t step) { return to_bytes(run_->directory_of(step)); }

  nb::tuple report() {
    const ManagedRunReport report = run().report();
    return nb::make_tuple(report.elapsed, report.calls, report.slower_steps, report.failed_saves, report.restarts,
                          report.redone, report.saves, report.failed, report.failures, report.interval,
                          report.good_share());
  }

  bool is_stop_requested() { return run_->is_stop_requested(); }
  void agreed_to_stop() { run_->agreed_to_stop(); }

  // Ctrl-C ends the wait for a removal, and is raised when the run is closed.
  void close(bool has_failed) {
    if (std::exchange(is_closed_, true)) return;
    call([&] { return run_->close(has_failed); });
  }

 private:
  nb::object collectives_;
  std::function<bool()> poll_;       // of the call under way
  std::unique_ptr<ManagedRun> run_;  // also after close(), for the listing
  bool is_closed_ = false;
};

}  // namespace

void bind_managed_run(nb::module_& module) {
  module.def("ignore_stop_signals",
             [](const std::vector<int>& signals, int rank_pid) { unwrap(ignore_stop_signals(signals, rank_pid)); });
  nb::class_<PythonManagedRun>(module, "ManagedRun")
      .def(nb::init<const nb::bytes&, const nb::tuple&, nb::object, nb::object, nb::object>(), nb::arg(), nb::arg(),
           nb::arg().none(), nb::arg().none(), nb::arg())
      .def("next_checkpoint", &PythonManagedRun::next_checkpoint, nb::arg().none())
      .def("resumed", &PythonManagedRun::resumed)
      .def("due", &PythonManagedRun::due)
      .def("request_stop", &PythonManagedRun::request_stop)
      .def("begin", &PythonManagedRun::begin)
      .def("began", &PythonManagedRun::began)
      .def("dropped", &PythonManagedRun::dropped)
      .def("ended", &PythonManagedRun::ended, nb::arg().none())
      .def("steps", &PythonManagedRun::steps)
      .def("latest_step", &PythonManagedRun::latest_step)
      .def("best_step", &PythonManagedRun::best_step)
      .def("metrics", &PythonManagedRun::metrics)
      .def("directory_of", &PythonManagedRun::directory_of)
      .def("report", &PythonManagedRun::report)
      .def("is_stop_requested", &PythonManagedRun::is_stop_requested)
      .def("agreed_to_stop", &PythonManagedRun::agreed_to_stop)
      .def("close", &PythonManagedRun::close);
}

}  // namespace cairn::python
