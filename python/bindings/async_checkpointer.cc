// AsyncCheckpointer, its stager and its writer process. Python's lock is released while the engine works or waits.
#include <cairn/async_checkpointer.h>

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "async_save.h"
#include "bound.h"
#include "call_options.h"
#include "catalog.h"
#include "text.h"

namespace cairn::python {
namespace {

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

// The process is also owned by its checkpointers, which may outlive Python.
struct WriterProcess {
  std::shared_ptr<CheckpointProcess> process;
};

std::unique_ptr<WriterProcess> make_process(const nb::bytes& executable, double grace_seconds, int nice,
                                            const std::string& io_priority) {
  CheckpointProcessOptions options;
  options.executable = to_filesystem_path(executable);
  options.grace = milliseconds_of(grace_seconds);
  options.nice = nice;
  if (io_priority == "low") options.io_priority = CheckpointProcessOptions::IoPriority::kLow;
  if (io_priority == "idle") options.io_priority = CheckpointProcessOptions::IoPriority::kIdle;
  return std::make_unique<WriterProcess>(WriterProcess{CheckpointProcess::make(options)});
}

// The files of AsyncSaveOptions: a list of (name, whether of torch.save, bytes, number of tensors), or None.
std::optional<std::vector<SavedFile>> saved_files_of(nb::handle files) {
  if (files.is_none()) return std::nullopt;
  std::vector<SavedFile> result;
  for (const nb::handle item : nb::borrow<nb::list>(files)) {
    const auto file = nb::borrow<nb::tuple>(item);
    const auto bytes = nb::borrow<nb::bytes>(file[2]);
    result.push_back({to_utf8(nb::borrow<nb::str>(file[0])), nb::cast<bool>(file[1]),
                      std::string(bytes.c_str(), bytes.size()), nb::cast<std::size_t>(file[3])});
  }
  return result;
}

// `terms`: (asynchronous staging, torn snapshot alarm, the owner of the memory that `state` points into, the argument
// of files_of()).
std::unique_ptr<PythonAsyncSave> start_save(AsyncCheckpointer& self, const nb::bytes& directory, const StateDict& state,
                                            const nb::tuple& terms, const nb::kwargs& keywords) {
  AsyncSaveOptions options;
  options.save = save_options_of(keywords);
  options.asynchronous_staging = nb::cast<bool>(terms[0]);
  options.torn_snapshot_alarm = nb::cast<bool>(terms[1]);
  options.files = saved_files_of(terms[3]);
  // Made before the save begins: a signal handler may raise an exception out of the call after the copy has begun.
  nb::object kept = options.asynchronous_staging ? nb::object(nb::borrow(terms[2])) : nb::object();
  auto save = std::make_unique<PythonAsyncSave>(std::move(kept), options.save.deadlines.progress);
  options.confirm_sources = save->confirmation();
  const std::filesystem::path path = to_filesystem_path(directory);
  without_lock(options.save, keywords, [&]() -> Result<void> {
    Result<AsyncSave> begun = self.save(path, state, options);
    if (!begun) return std::move(begun).error();
    save->began(std::move(*begun));
    return {};
  });
  return save;
}

// `reason` is an argument for reason_of().
// `of_files`: of a save of files.
void abandon_async_save(AsyncCheckpointer& self, const nb::tuple& reason, bool of_files, const nb::kwargs& keywords) {
  AsyncSaveOptions options;
  if (of_files) options.files.emplace();
  options.save = save_options_of(keywords);
  const Error error = reason_of(reason);
  without_lock(options.save, keywords, [&] { return Result<void>(self.abandon_save(error, options)); });
}

void prepare_for(AsyncCheckpointer& self, const StateDict& state) {
  Interrupt interrupt;
  const auto poll = interrupt.poll();
  Result<void> prepared;
  {
    const nb::gil_scoped_release released;
    prepared = self.prepare(state, poll);
  }
  interrupt.rethrow();
  unwrap(std::move(prepared));
}

void prepare_ahead(AsyncCheckpointer& self, std::uint64_t bytes, double idle_seconds) {
  Result<void> started;
  {
    const nb::gil_scoped_release released;
    started = self.prepare_ahead(bytes, milliseconds_of(idle_seconds));
  }
  unwrap(std::move(started));
}

void close(AsyncCheckpointer& self) {
  Result<void> closed;
  {
    const nb::gil_scoped_release released;
    closed = self.close();
  }
  unwrap(std::move(closed));
}

template <typename T>
bool is_ready_within(double seconds, const std::shared_future<T>& future) {
  const nb::gil_scoped_release released;
  return future.wait_for(milliseconds_of(seconds)) == std::future_status::ready;
}

// False after the time-out.
bool wait_copied(const PythonAsyncSave& self, double seconds) {
  const nb::gil_scoped_release released;
  return self.wait_copied(milliseconds_of(seconds));
}

// `moved`: the keys of tensors whose memory was freed during the copy.
void confirm(PythonAsyncSave& self, const std::vector<std::string>& moved) {
  if (moved.empty()) return self.confirm({});
  std::string list;
  for (const std::string& key : moved) list.append(list.empty() ? "'" : ", '").append(key).append("'");
  self.confirm(
      Error(ErrorCode::kInvalidArgument, "the storages of tensors were resized while they were being staged: " + list +
                                             "; wait for the end of staging before resizing a storage")
          .key(moved.front()));
}

// False after the time-out.
bool wait_staged(const PythonAsyncSave& self, double seconds) {
  const AsyncSave& save = self.save();
  if (!is_ready_within(seconds, save.staging)) return false;
  unwrap(save.staging.get());
  return true;
}

// (save id, whether catalog() can be called, bytes written, warnings), or None after the time-out.
nb::object wait_written(const PythonAsyncSave& self, double seconds) {
  const AsyncSave& save = self.save();
  if (!is_ready_within(seconds, save.write)) return nb::none();
  const AsyncSaveReport report = unwrap(save.write.get());
  return nb::make_tuple(to_str(to_hex(report.save_id)), report.render_metadata != nullptr, report.bytes_written,
                        strings(report.warnings));
}

SharedCatalog catalog_of(const PythonAsyncSave& self) {
  const AsyncSaveReport report = unwrap(self.save().write.get());
  Result<Catalog> catalog = Error(ErrorCode::kInternal, "not rendered");
  {
    const nb::gil_scoped_release released;
    catalog = report.catalog();
  }
  return {std::make_shared<Catalog>(unwrap(std::move(catalog)))};
}

// `streams`: (ordinal of a CUDA device, stream). False after the time-out.
bool fence(const PythonAsyncSave& self, const std::vector<std::pair<std::int32_t, std::uintptr_t>>& streams,
           double seconds) {
  const nb::gil_scoped_release released;
  Result<bool> is_open = self.save().fence({}, milliseconds_of(seconds));
  for (const auto& [ordinal, stream] : streams) {
    if (!is_open || !*is_open) break;
    is_open = self.save().fence(Device::cuda(ordinal, stream), std::chrono::milliseconds(0));
  }
  return is_open.value();
}

// (phase, bytes written, bytes in all)
nb::tuple progress_of(const PythonAsyncSave& self) {
  const SaveProgress progress = self.save().progress();
  return nb::make_tuple(to_str(name_of(progress.phase)), progress.bytes_written, progress.bytes_total);
}

// `memory`: (generations, heed memory limits). `sharing`: the checkpointer whose memory the new one
// uses in place of its own; may be null.
std::unique_ptr<AsyncCheckpointer> make_checkpointer(const WriterProcess* process,
                                                     const std::tuple<std::size_t, bool>& memory, int nice,
                                                     const AsyncCheckpointer* sharing) {
  AsyncCheckpointerOptions options;
  const auto& [generations, heed_memory_limits] = memory;
  if (sharing != nullptr) options.stager = sharing->stager();
  if (!options.stager) options.stager = CheckpointStager::make({generations, heed_memory_limits});
  if (process != nullptr) options.process = process->process;
  options.overlap = true;
  options.nice = nice;
  return std::make_unique<AsyncCheckpointer>(std::move(options));
}

}  // namespace

void bind_async_checkpointer(nb::module_& module) {
  nb::class_<WriterProcess>(module, "WriterProcess")
      .def(nb::new_(&make_process), nb::arg("executable"), nb::arg("grace_seconds"), nb::arg("nice"),
           nb::arg("io_priority"))
      .def("start",
           [](const WriterProcess& self) {
             Result<void> started;
             {
               const nb::gil_scoped_release released;
               started = self.process->start();
             }
             unwrap(std::move(started));
           })
      .def_prop_ro("pid", [](const WriterProcess& self) { return self.process->pid(); });
  nb::class_<PythonAsyncSave>(module, "AsyncSave")
      .def("wait_copied", &wait_copied)
      .def("confirm", &confirm)
      .def("release", &PythonAsyncSave::release)
      .def("leave", &PythonAsyncSave::leave)
      .def("wait_staged", &wait_staged)
      .def("fence", &fence)
      .def("wait_written", &wait_written)
      .def("catalog", &catalog_of)
      .def("progress", &progress_of);
  nb::class_<AsyncCheckpointer>(module, "AsyncCheckpointer")
      .def(nb::new_(&make_checkpointer), nb::arg("process").none(), nb::arg("memory"), nb::arg("nice"),
           nb::arg("sharing").none())
      .def("save", &start_save)
      .def("abandon_save", &abandon_async_save)
      .def("prepare", &prepare_for)
      .def("prepare_ahead", &prepare_ahead)
      .def("free_bytes",
           [](const AsyncCheckpointer& self) {
             const auto stager = self.stager();
             return stager ? stager->free_bytes() : 0;
           })
      .def("close", &close)
      .def("detach", &AsyncCheckpointer::detach);
}

}  // namespace cairn::python
