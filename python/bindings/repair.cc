// repair. Python's lock is released while the engine works; Ctrl-C ends the call before the next data file
// (interrupt.h).
#include <cairn/repair.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "bound.h"
#include "call_options.h"
#include "errors.h"
#include "text.h"

namespace cairn::python {
namespace {

const char* text_of(RepairReport::Metadata metadata) {
  switch (metadata) {
    case RepairReport::Metadata::kGood: return "good";
    case RepairReport::Metadata::kRebuilt: return "rebuilt";
    case RepairReport::Metadata::kUnusable: return "unusable";
    case RepairReport::Metadata::kDataLost: return "data lost";
    case RepairReport::Metadata::kNone: return "none";
  }
  return "";
}

nb::tuple tuple_of(const Extents& extents) { return from_extents(extents.data(), extents.size()); }

nb::list lost_of(const RepairReport& report) {
  nb::list lost;
  for (const LostElements& tensor : report.lost) {
    nb::list regions;
    for (const Box& box : tensor.regions)
      regions.append(nb::make_tuple(tuple_of(box.offsets()), tuple_of(box.sizes())));
    const nb::object elements = tensor.regions.empty() ? nb::none() : nb::object(nb::int_(tensor.elements));
    lost.append(nb::make_tuple(to_str(tensor.key), tuple_of(tensor.shape), elements, regions));
  }
  return lost;
}

nb::tuple lists_of(const RepairReport& report) {
  nb::list saves;
  for (const FoundSave& save : report.saves) {
    saves.append(nb::make_tuple(to_str(to_hex(save.save_id)), save.files, save.expected_files, save.is_leftover));
  }
  nb::list cleaned;
  for (const CleanedSave& save : report.cleaned) {
    nb::list files;
    for (const CleanedFile& file : save.files) files.append(nb::make_tuple(to_str(file.name), file.bytes));
    cleaned.append(nb::make_tuple(to_str(to_hex(save.save_id)), files));
  }
  nb::list problems;
  for (const Error& problem : report.problems) problems.append(exception_of(problem));
  return nb::make_tuple(strings(report.missing), lost_of(report), strings(report.lost_values), saves, cleaned,
                        strings(report.warnings), problems);
}

// The fields of one value, and the lists.
nb::tuple repair_in(const nb::bytes& directory, bool dry_run, bool partial, nb::handle save,
                    std::optional<std::uint32_t> rank) {
  const std::filesystem::path path = to_filesystem_path(directory);
  RepairOptions options{.dry_run = dry_run, .partial = partial, .save = to_utf8(save), .rank = rank};
  const RepairReport report = without_lock(options, [&] { return repair(path, options); });
  const nb::object save_id = report.save_id ? to_str(to_hex(*report.save_id)) : nb::none();
  return nb::make_tuple(
      nb::make_tuple(text_of(report.metadata), report.is_complete, save_id, report.files, report.tensors, report.values,
                     to_str(report.damaged_name), report.missing_files),
      lists_of(report));
}

}  // namespace

void bind_repair(nb::module_& module) {
  module.def("repair", &repair_in, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
}

}  // namespace cairn::python
