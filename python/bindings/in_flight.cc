// latest, checkpoints, saves_in_flight and clean. Python's lock is released while the engine works; Ctrl-C ends the
// wait (interrupt.h).
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
#include "call_options.h"
#include "errors.h"
#include "text.h"

namespace cairn::python {
namespace {

// The directory or None, and the reasons of unusable checkpoints. `keywords`: collectives.
nb::tuple latest_of(const nb::bytes& root, std::uint64_t wait_ms, std::optional<std::uint32_t> rank,
                    const nb::kwargs& keywords) {
  const std::filesystem::path path = to_filesystem_path(root);
  std::vector<std::string> reasons;
  LatestOptions options;
  options.wait = std::chrono::milliseconds(wait_ms);
  options.rank = rank;
  options.passed_over = [&reasons](const Error& reason) { reasons.emplace_back(reason.what()); };
  options.collectives = load_options_of(keywords).collectives;
  const auto directory = without_lock(options, keywords, [&] { return latest(path, options); });
  if (!directory) return nb::make_tuple(nb::none(), strings(reasons));
  return nb::make_tuple(to_bytes(*directory), strings(reasons));
}

const char* text_of(ListedCheckpoint::State state) {
  switch (state) {
    case ListedCheckpoint::State::kComplete: return "complete";
    case ListedCheckpoint::State::kIncomplete: return "incomplete";
    case ListedCheckpoint::State::kUnreadable: return "unreadable";
  }
  return "";
}

nb::list checkpoints_below(const nb::bytes& root, std::optional<std::uint32_t> rank) {
  const std::filesystem::path path = to_filesystem_path(root);
  ListingOptions options{rank, {}};
  nb::list listed;
  for (const ListedCheckpoint& entry : without_lock(options, [&] { return checkpoints(path, options); })) {
    const nb::object reason = entry.reason ? nb::object(to_str(entry.reason->what())) : nb::none();
    listed.append(nb::make_tuple(to_bytes(entry.directory), entry.step, text_of(entry.state), reason, entry.is_newest,
                                 to_str(name_of(entry.format))));
  }
  return listed;
}

// The saves, each with its directory, id and files; the warnings; and the problems as exceptions.
nb::tuple clean_below(const nb::bytes& root, bool dry_run) {
  const std::filesystem::path path = to_filesystem_path(root);
  CleanOptions options{dry_run, {}};
  const CleanReport report = without_lock(options, [&] { return clean(path, options); });
  nb::list saves;
  for (const CleanedSave& save : report.saves) {
    nb::list files;
    for (const CleanedFile& file : save.files) files.append(nb::make_tuple(to_str(file.name), file.bytes));
    saves.append(nb::make_tuple(to_bytes(save.directory), to_str(to_hex(save.save_id)), files));
  }
  nb::list problems;
  for (const Error& problem : report.problems) problems.append(exception_of(problem));
  return nb::make_tuple(saves, strings(report.warnings), problems);
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
    saves.append(nb::make_tuple(to_str(to_hex(save.save_id)), to_str(to_hex(save.job_id)), save.save_number,
                                decision_of(save), save.is_leftover, writers, failures, save.is_readable,
                                to_bytes(save.directory)));
  }
  return saves;
}

}  // namespace

void bind_in_flight(nb::module_& module) {
  module.def("latest", &latest_of, nb::arg(), nb::arg(), nb::arg().none(), nb::arg("keywords"));
  module.def("checkpoints", &checkpoints_below, nb::arg(), nb::arg().none());
  module.def("clean", &clean_below);
  module.def("saves_in_flight", &saves_below);
}

}  // namespace cairn::python
