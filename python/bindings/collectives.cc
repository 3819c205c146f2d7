#include "collectives.h"

#include <cairn/collectives.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bound.h"
#include "text.h"

namespace cairn::python {
namespace {

using Messages = std::vector<std::string>;

nb::bytes to_bytes(const std::string& message) { return nb::bytes(message.data(), message.size()); }

nb::list to_list(const Messages& messages) {
  nb::list list;
  for (const std::string& message : messages) list.append(to_bytes(message));
  return list;
}

std::string to_message(nb::handle bytes) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes.ptr(), &data, &size) != 0) throw nb::python_error();
  return {data, static_cast<std::size_t>(size)};
}

Messages to_messages(nb::handle sequence) {
  Messages messages;
  const nb::object items = nb::steal(PyObject_GetIter(sequence.ptr()));
  if (!items.is_valid()) throw nb::python_error();
  while (true) {
    const nb::object item = nb::steal(PyIter_Next(items.ptr()));
    if (!item.is_valid()) break;
    messages.push_back(to_message(item));
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return messages;
}

bool is_interrupt(nb::handle exception) { return PyErr_GivenExceptionMatches(exception.ptr(), PyExc_Exception) == 0; }

}  // namespace

PythonCollectives::PythonCollectives(nb::object calls) : calls_(std::move(calls)), engine_(engine_of(calls_)) {}

std::unique_ptr<Collectives> PythonCollectives::engine_of(nb::handle calls) {
  return python::unwrap(make_collectives({
      .rank = nb::cast<std::size_t>(calls.attr("rank")),
      .size = nb::cast<std::size_t>(calls.attr("size")),
      .gather =
          [this, calls](const std::string& bytes, std::size_t root) {
            return ask([&]() -> Result<Messages> { return to_messages(calls.attr("gather")(to_bytes(bytes), root)); });
          },
      .scatter =
          [this, calls](const Messages& bytes, std::size_t root) {
            return ask(
                [&]() -> Result<std::string> { return to_message(calls.attr("scatter")(to_list(bytes), root)); });
          },
      .broadcast =
          [this, calls](const std::string& bytes, std::size_t root) {
            return ask(
                [&]() -> Result<std::string> { return to_message(calls.attr("broadcast")(to_bytes(bytes), root)); });
          },
      .all_gather =
          [this, calls](const std::string& bytes) {
            return ask([&]() -> Result<Messages> { return to_messages(calls.attr("all_gather")(to_bytes(bytes))); });
          },
      .barrier =
          [this, calls] {
            return ask([&]() -> Result<void> {
              calls.attr("barrier")();
              return {};
            });
          },
      .smallest =
          [this, calls](const std::vector<std::int64_t>& numbers) {
            return ask([&]() -> Result<std::vector<std::int64_t>> {
              return nb::cast<std::vector<std::int64_t>>(calls.attr("smallest")(numbers));
            });
          },
      .broadcast_in_place =
          [this, calls](std::span<std::byte> bytes, std::size_t root) {
            return ask([&]() -> Result<void> {
              calls.attr("broadcast_in_place")(reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size(), root);
              return {};
            });
          },
      .subgroup = [this](const std::vector<std::size_t>& ranks) { return ask([&] { return subgroup(ranks); }); },
  }));
}

Result<Collectives*> PythonCollectives::subgroup(const std::vector<std::size_t>& ranks) {
  if (const auto found = subgroups_.find(ranks); found != subgroups_.end()) return found->second.engine.get();
  nb::object calls = calls_.attr("subgroup")(ranks);
  std::unique_ptr<Collectives> engine = engine_of(calls);
  Subgroup& made = subgroups_[ranks];
  made = {std::move(calls), std::move(engine)};
  return made.engine.get();
}

template <typename Work>
auto PythonCollectives::ask(Work&& work) -> decltype(work()) {
  const nb::gil_scoped_acquire lock;
  try {
    return work();
  } catch (const nb::python_error& error) {
    return keep(error);
  }
}

Error PythonCollectives::keep(const nb::python_error& error) {
  const nb::object raised = nb::borrow(error.value());
  // The first exception is the cause of the later ones; an interrupt is the caller's wish.
  if (!raised_.is_valid() || (is_interrupt(raised) && !is_interrupt(raised_))) raised_ = raised;
  const std::string kind = to_utf8(error.type().attr("__name__"));
  const std::string text = kind + ": " + to_utf8(nb::str(raised));
  if (is_interrupt(raised)) return {ErrorCode::kCancelled, text};
  const nb::object invalid = nb::module_::import_("cairn.errors").attr("InvalidArgument");
  if (nb::isinstance(raised, invalid)) return {ErrorCode::kInvalidArgument, to_utf8(nb::str(raised))};
  return {ErrorCode::kUnavailable, "the process group failed: " + text};
}

void PythonCollectives::raise_interrupt() {
  if (!raised_.is_valid() || !is_interrupt(raised_)) return;
  const nb::object interrupt = std::move(raised_);
  PyErr_SetObject(interrupt.type().ptr(), interrupt.ptr());
  throw nb::python_error();
}

void PythonCollectives::raise(const Error& error) {
  const nb::object exception = exception_of(error);
  if (raised_.is_valid()) PyException_SetCause(exception.ptr(), raised_.release().ptr());
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

int PythonCollectives::traverse(visitproc visit, void* arg) const {
  Py_VISIT(calls_.ptr());
  for (const auto& [ranks, subgroup] : subgroups_) Py_VISIT(subgroup.calls.ptr());
  Py_VISIT(raised_.ptr());
  return 0;
}

void PythonCollectives::clear() {
  subgroups_.clear();
  calls_.reset();
  raised_.reset();
}

namespace {

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<PythonCollectives>(self)->traverse(visit, arg) : 0;
}

int clear(PyObject* self) {
  nb::inst_ptr<PythonCollectives>(self)->clear();
  return 0;
}

PyType_Slot slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(&traverse)}, {Py_tp_clear, reinterpret_cast<void*>(&clear)}, {0, nullptr}};

// Runs `work` with the engine's collectives and without Python's lock.
template <typename Work>
auto run(PythonCollectives& self, Work&& work) {
  auto result = [&] {
    const nb::gil_scoped_release released;
    return work(self.engine());
  }();
  return self.unwrap(std::move(result));
}

}  // namespace

void bind_collectives(nb::module_& module) {
  nb::class_<PythonCollectives>(module, "Collectives", nb::type_slots(slots))
      .def(nb::init<nb::object>())
      .def_prop_ro("rank", [](PythonCollectives& self) { return self.engine().rank(); })
      .def_prop_ro("size", [](PythonCollectives& self) { return self.engine().size(); })
      .def("gather",
           [](PythonCollectives& self, const nb::bytes& bytes, std::size_t root) {
             std::string message = to_message(bytes);
             return to_list(run(self, [&](Collectives& ranks) { return ranks.gather(std::move(message), root); }));
           })
      .def("scatter",
           [](PythonCollectives& self, const nb::object& bytes, std::size_t root) {
             Messages messages = to_messages(bytes);
             return to_bytes(run(self, [&](Collectives& ranks) { return ranks.scatter(std::move(messages), root); }));
           })
      .def("broadcast",
           [](PythonCollectives& self, const nb::bytes& bytes, std::size_t root) {
             std::string message = to_message(bytes);
             return to_bytes(run(self, [&](Collectives& ranks) { return ranks.broadcast(std::move(message), root); }));
           })
      .def("all_gather",
           [](PythonCollectives& self, const nb::bytes& bytes) {
             std::string message = to_message(bytes);
             return to_list(run(self, [&](Collectives& ranks) { return ranks.all_gather(std::move(message)); }));
           })
      .def("broadcast_in_place",
           [](PythonCollectives& self, nb::bytearray& bytes, std::size_t root) {
             const std::span<std::byte> memory(static_cast<std::byte*>(bytes.data()), bytes.size());
             run(self, [&](Collectives& ranks) { return ranks.broadcast_in_place(memory, root); });
           })
      .def("smallest",
           [](PythonCollectives& self, std::vector<std::int64_t> numbers) {
             return run(self, [&](Collectives& ranks) { return ranks.smallest(std::move(numbers)); });
           })
      .def("barrier", [](PythonCollectives& self) { run(self, [](Collectives& ranks) { return ranks.barrier(); }); });
}

}  // namespace cairn::python
