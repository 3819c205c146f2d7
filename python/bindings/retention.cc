// prune, remove_checkpoint, pin, unpin and read_pin. Python's lock is released while the engine works; Ctrl-C ends
// prune() before the next removal (interrupt.h).
#include <cairn/retention.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "bound.h"
#include "call_options.h"
#include "errors.h"
#include "retention_rule.h"
#include "text.h"

namespace cairn::python {
namespace {

nb::tuple tuple_of(const RemovedCheckpoint& removed) {
  const nb::object save_id = removed.save_id ? to_str(to_hex(*removed.save_id)) : nb::none();
  return nb::make_tuple(to_bytes(removed.directory), removed.step, save_id, removed.files, removed.bytes,
                        removed.was_interrupted, removed.keeps_directory, strings(removed.warnings));
}

// The removed and the kept checkpoints, and the problems as exceptions.
nb::tuple prune_below(const nb::bytes& root, const nb::tuple& rule, bool adopt, bool dry_run, const nb::list& protect) {
  const std::filesystem::path path = to_filesystem_path(root);
  PruneOptions options{.rule = rule_of(rule), .adopt = adopt, .dry_run = dry_run};
  for (const nb::handle directory : protect) {
    options.protect.push_back(to_filesystem_path(nb::cast<nb::bytes>(directory)));
  }
  const PruneReport report = without_lock(options, [&] { return prune(path, options); });
  nb::list removed;
  for (const RemovedCheckpoint& checkpoint : report.removed) removed.append(tuple_of(checkpoint));
  nb::list kept;
  for (const KeptCheckpoint& checkpoint : report.kept) {
    kept.append(nb::make_tuple(to_bytes(checkpoint.directory), checkpoint.step, to_str(checkpoint.reason)));
  }
  nb::list problems;
  for (const Error& problem : report.problems) problems.append(exception_of(problem));
  return nb::make_tuple(removed, kept, problems);
}

// Runs `work`, which ends by itself, without Python's lock.
template <typename Work>
auto released(Work&& work) {
  auto result = [&] {
    const nb::gil_scoped_release released;
    return work();
  }();
  return unwrap(std::move(result));
}

nb::tuple remove_from(const nb::bytes& directory, bool dry_run) {
  const std::filesystem::path path = to_filesystem_path(directory);
  return tuple_of(released([&] { return remove_checkpoint(path, {.dry_run = dry_run}); }));
}

void pin_in(const nb::bytes& directory, nb::handle note) {
  const std::filesystem::path path = to_filesystem_path(directory);
  const std::string text = to_utf8(note);
  released([&] { return pin(path, text); });
}

bool unpin_in(const nb::bytes& directory) {
  const std::filesystem::path path = to_filesystem_path(directory);
  return released([&] { return unpin(path); });
}

nb::object note_in(const nb::bytes& directory) {
  const std::filesystem::path path = to_filesystem_path(directory);
  return to_str_or_none(released([&] { return read_pin(path); }));
}

}  // namespace

void bind_retention(nb::module_& module) {
  module.def("prune", &prune_below);
  module.def("remove_checkpoint", &remove_from);
  module.def("pin", &pin_in);
  module.def("unpin", &unpin_in);
  module.def("read_pin", &note_in);
}

}  // namespace cairn::python
