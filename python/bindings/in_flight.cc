// latest and saves_in_flight. Python's lock is released while the engine works; Ctrl-C ends the wait (interrupt.h).
#include <cairn/in_flight.h>
#include <cairn/latest.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bound.h"
#include "errors.h"
#include "interrupt.h"
#include "text.h"

namespace cairn::python {
namespace {

// The directory or None, and the reasons of unusable checkpoints.
nb::tuple latest_of(const nb::bytes& root, std::uint64_t wait_ms, std::optional<std::uint32_t> rank) {
  const std::filesystem::path path = to_filesystem_path(root);
  Interrupt interrupt;
  std::vector<std::string> reasons;
  const auto passed_over = [&reasons](const Error& reason) { reasons.emplace_back(reason.what()); };
  const LatestOptions options{std::chrono::milliseconds(wait_ms), rank, interrupt.poll(), passed_over};
  std::optional<Result<std::optional<std::filesystem::path>>> found;
  {
    const nb::gil_scoped_release released;
    found.emplace(latest(path, options));
  }
  interrupt.rethrow();
  const std::optional<std::filesystem::path> directory = unwrap(std::move(*found));
  nb::list texts;
  for (const std::string& reason : reasons) texts.append(to_str(reason));
  if (!directory) return nb::make_tuple(nb::none(), texts);
  return nb::make_tuple(nb::bytes(directory->native().data(), directory->native().size()), texts);
}

const char* text_of(SaveInFlightWriter::State state) {
  switch (state) {
    case SaveInFlightWriter::State::kAlive: return "alive";
    case SaveInFlightWriter::State::kDead: return "dead";
    case SaveInFlightWriter::State::kUnknown: return "unknown";
  }
  return "";
}

nb::object decision_of(const SaveInFlight& save) {
  if (save.decision == SaveInFlight::Decision::kNone) return nb::none();
  return to_str(save.decision == SaveInFlight::Decision::kCommitted ? "committed" : "failed");
}

nb::tuple writer_of(const SaveInFlightWriter& writer) {
  nb::object progress = nb::none();
  if (writer.progress) {
    progress = nb::make_tuple(to_str(name_of(writer.progress->phase)), writer.progress->bytes_written,
                              writer.progress->bytes_total);
  }
  return nb::make_tuple(writer.rank, to_str(writer.host), writer.pid, text_of(writer.state), writer.seconds_since_sign,
                        writer.is_readable, progress, to_str(writer.pending_call), writer.seconds_without_progress);
}

nb::list saves_below(const nb::bytes& root) {
  const std::filesystem::path path = to_filesystem_path(root);
  std::optional<Result<std::vector<SaveInFlight>>> found;
  {
    const nb::gil_scoped_release released;
    found.emplace(saves_in_flight(path));
  }
  nb::list saves;
  for (const SaveInFlight& save : unwrap(std::move(*found))) {
    nb::list writers;
    for (const SaveInFlightWriter& writer : save.writers) writers.append(writer_of(writer));
    nb::list failures;
    for (const Error& failure : save.failures) failures.append(nb::make_tuple(failure.rank(), to_str(failure.what())));
    const std::string& directory = save.directory.native();
    saves.append(nb::make_tuple(to_str(to_hex(save.save_id)), to_str(to_hex(save.job_id)), save.save_number,
                                decision_of(save), save.is_leftover, writers, failures, save.is_readable,
                                nb::bytes(directory.data(), directory.size())));
  }
  return saves;
}

}  // namespace

void bind_in_flight(nb::module_& module) {
  module.def("latest", &latest_of, nb::arg(), nb::arg(), nb::arg().none());
  module.def("saves_in_flight", &saves_below);
}

}  // namespace cairn::python
