// save, load, open, verify. Python's lock is released while the engine works; Ctrl-C stops the engine (interrupt.h).
#include <cairn/checkpoint.h>

#include <cairn/catalog.h>
#include <cairn/inspect.h>
#include <cairn/save.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "archive_taker.h"
#include "bound.h"
#include "call_options.h"
#include "catalog.h"
#include "errors.h"
#include "load_outcome.h"
#include "text.h"

namespace cairn::python {
namespace {

// (catalog or None, save id, bytes written, warnings)
nb::tuple save_state(const nb::bytes& directory, const StateDict& state, const nb::kwargs& keywords) {
  SaveOptions options = save_options_of(keywords);
  const std::filesystem::path path = to_filesystem_path(directory);
  SaveReport report = without_lock(options, keywords, [&] { return save(path, state, options); });
  const nb::object catalog = report.catalog ? nb::cast(SharedCatalog{report.catalog}) : nb::object(nb::none());
  return nb::make_tuple(catalog, to_str(to_hex(report.save_id)), report.bytes_written, strings(report.warnings));
}

// Returns the warnings.
nb::list consolidate_model(const nb::bytes& input, const nb::bytes& output, const nb::kwargs& keywords) {
  SaveOptions options = save_options_of(keywords);
  const std::filesystem::path from = to_filesystem_path(input);
  const std::filesystem::path to = to_filesystem_path(output);
  const SaveReport report = without_lock(options, keywords, [&] { return consolidate(from, to, options); });
  return strings(report.warnings);
}

// Issues the warnings, except for the checkpoint's damage.
void warn_of(const LoadReport& report, const Checkpoint& checkpoint) {
  const std::optional<std::string> damage = checkpoint.damage();
  for (const std::string& warning : report.warnings) {
    if (warning == damage) continue;
    const nb::object category = nb::module_::import_("builtins").attr("RuntimeWarning");
    nb::module_::import_("warnings").attr("warn")(to_str(warning), category, 2);
  }
}

// (conversions: [(fqn, saved dtype code, target dtype code)], missing keys)
nb::tuple load_state(const Checkpoint& checkpoint, StateDict& state, const nb::kwargs& keywords) {
  LoadOptions options = load_options_of(keywords);
  std::optional<ArchiveTaker> taker;
  if (keywords.contains("take_archive")) options.take_archive = taker.emplace(keywords["take_archive"]).function();
  LoadReport report;
  try {
    report = without_lock(options, keywords, [&] { return checkpoint.load(state, options); });
  } catch (const Error& error) {
    if (taker) taker->rethrow(options.collectives == nullptr);
    rethrow_with_keys(error, checkpoint, state, options);
  }
  warn_of(report, checkpoint);
  return nb::make_tuple(conversions_of(report), strings(report.missing));
}

// [(new name, key), ...]
nb::list renamed_keys(const Checkpoint& checkpoint, nb::handle renames) {
  const std::vector<KeyRename> rules = renames_of(renames);
  std::optional<Result<std::vector<std::pair<std::string, std::string>>>> names;
  {
    const nb::gil_scoped_release released;
    names.emplace(checkpoint.renamed_keys(rules));
  }
  nb::list list;
  for (const auto& [name, key] : unwrap(std::move(*names))) list.append(nb::make_tuple(to_str(name), to_str(key)));
  return list;
}

std::optional<KeyEntry> entry_of(const Checkpoint& checkpoint, const std::string& fqn) {
  std::optional<Result<std::optional<KeyEntry>>> entry;
  {
    const nb::gil_scoped_release released;
    entry.emplace(checkpoint.entry(fqn));
  }
  return unwrap(std::move(*entry));
}

// As Catalog.tensor of Python.
nb::object tensor_of(const Checkpoint& checkpoint, const nb::str& fqn) {
  const std::optional<KeyEntry> entry = entry_of(checkpoint, to_utf8(fqn));
  const auto* tensor = entry ? std::get_if<CatalogTensor>(&*entry) : nullptr;
  return tensor == nullptr ? nb::object(nb::none()) : tuple_of(checkpoint.files(), *tensor);
}

// (dtype code, shape); None: the key is not a tensor.
nb::object tensor_form_of(const Checkpoint& checkpoint, const nb::str& fqn) {
  const std::optional<KeyEntry> entry = entry_of(checkpoint, to_utf8(fqn));
  const auto* tensor = entry ? std::get_if<CatalogTensor>(&*entry) : nullptr;
  if (tensor == nullptr) return nb::none();
  return nb::make_tuple(static_cast<int>(tensor->dtype), from_extents(tensor->shape.data(), tensor->shape.size()));
}

// As Catalog.value of Python.
nb::object value_of(const Checkpoint& checkpoint, const nb::str& fqn) {
  const std::optional<KeyEntry> entry = entry_of(checkpoint, to_utf8(fqn));
  const auto* value = entry ? std::get_if<CatalogValue>(&*entry) : nullptr;
  return value == nullptr ? nb::object(nb::none()) : tuple_of(checkpoint.files(), value->location);
}

// Among the first keys: an error message must not take gigabytes.
nb::list nearest_keys(const Checkpoint& checkpoint, const nb::str& fqn, std::size_t count_max) {
  constexpr std::uint64_t kKeysMax = std::uint64_t{1} << 18;
  const std::string name = to_utf8(fqn);
  std::vector<std::string> nearest;
  {
    const nb::gil_scoped_release released;
    nearest = checkpoint.outline(kKeysMax).value().nearest_keys(name, count_max);
  }
  return strings(nearest);
}

// [(key, dtype code or None, shape or None), ...], empty after the last key.
nb::list next_keys(KeyStream& stream) {
  std::optional<Result<std::span<const KeySummary>>> keys;
  {
    const nb::gil_scoped_release released;
    keys.emplace(stream.next());
  }
  nb::list list;
  for (const KeySummary& key : unwrap(std::move(*keys))) {
    const nb::object dtype = key.is_tensor ? nb::int_(static_cast<int>(key.dtype)) : nb::object(nb::none());
    const nb::object shape =
        key.is_tensor ? nb::object(from_extents(key.shape.data(), key.shape.size())) : nb::object(nb::none());
    list.append(nb::make_tuple(to_str(key.fqn), dtype, shape));
  }
  return list;
}

// Reads `box` = (offsets, sizes) of a tensor into the memory at `data`, row-major. The memory must have room for the
// box.
void read_box(const Checkpoint& checkpoint, const nb::str& fqn, const nb::tuple& box, std::uintptr_t data,
              const nb::kwargs& keywords) {
  LoadOptions options = load_options_of(keywords);
  const std::string name = to_utf8(fqn);
  const std::optional<KeyEntry> entry = entry_of(checkpoint, name);
  const auto* tensor = entry ? std::get_if<CatalogTensor>(&*entry) : nullptr;
  if (tensor == nullptr) throw Error(Error(ErrorCode::kMissingKey, "no such tensor in the checkpoint").key(name));
  const Box wanted = unwrap(Box::make(to_extents(box[0]), to_extents(box[1])));
  void* const target = reinterpret_cast<void*>(data);  // NOLINT(performance-no-int-to-ptr): Python hands over integers
  const TensorView view = TensorView::contiguous(target, tensor->dtype, wanted.sizes());
  without_lock(options, keywords, [&] { return checkpoint.read(name, wanted, view, options); });
}

// Both raise the error of all ranks. `reason` is an argument for reason_of().
void abandon_save_with(const nb::tuple& reason, const nb::kwargs& keywords) {
  SaveOptions options = save_options_of(keywords);
  const Error error = reason_of(reason);
  without_lock(options, keywords, [&] { return Result<void>(abandon_save(error, options)); });
}

void abandon_load_with(const nb::tuple& reason, const nb::kwargs& keywords) {
  LoadOptions options = load_options_of(keywords);
  const Error error = reason_of(reason);
  without_lock(options, keywords, [&] { return Result<void>(abandon_load(error, options)); });
}

// The events of a load that has failed before Checkpoint.load.
void tell_failed_load_with(const nb::bytes& directory, const nb::tuple& reason, const nb::kwargs& keywords) {
  const LoadOptions options = load_options_of(keywords);
  const std::filesystem::path path = to_filesystem_path(directory);
  const Error error = reason_of(reason);
  const nb::gil_scoped_release released;
  tell_failed_load(path, error, options);
}

// An empty `reason` means success of the work.
void agree_with(const nb::tuple& reason, const nb::kwargs& keywords) {
  LoadOptions options = load_options_of(keywords);
  const Result<void> mine = reason.empty() ? Result<void>() : reason_of(reason);
  without_lock(options, keywords, [&] { return agree(mine, options); });
}

nb::bytes read_payload(const Checkpoint& checkpoint, const nb::str& fqn, const nb::kwargs& keywords) {
  LoadOptions options = load_options_of(keywords);
  const std::string name = to_utf8(fqn);
  const std::string payload = without_lock(options, keywords, [&] { return checkpoint.read_payload(name, options); });
  return nb::bytes(payload.data(), payload.size());
}

// `purpose`: "load", as by open_to_load(); "inspect", as by open_to_inspect(); or "", as by open().
std::shared_ptr<Checkpoint> open_checkpoint(const nb::bytes& directory, const std::string& metadata_name,
                                            const std::string& purpose) {
  const std::filesystem::path path = to_filesystem_path(directory);
  std::optional<Result<Checkpoint>> opened;
  {
    const nb::gil_scoped_release released;
    opened.emplace(purpose == "load"      ? open_to_load(path, metadata_name)
                   : purpose == "inspect" ? open_to_inspect(path, metadata_name)
                                          : open(path, metadata_name));
  }
  return std::make_shared<Checkpoint>(unwrap(std::move(*opened)));
}

bool holds_any(const Checkpoint& checkpoint, const nb::list& fqns) {
  std::vector<std::string> names;
  for (const nb::handle fqn : fqns) names.push_back(to_utf8(nb::cast<nb::str>(fqn)));
  const nb::gil_scoped_release released;
  return checkpoint.holds_any(names).value();
}

SharedCatalog catalog_of_checkpoint(std::shared_ptr<Checkpoint> checkpoint) {
  const Catalog* catalog = nullptr;
  {
    const nb::gil_scoped_release released;
    catalog = &checkpoint->catalog();
  }
  return {std::shared_ptr<const Catalog>(std::move(checkpoint), catalog)};
}

nb::dict verify_directory(const nb::bytes& directory, std::size_t thread_count, bool follow_links,
                          const nb::tuple& deadlines) {
  const std::filesystem::path path = to_filesystem_path(directory);
  VerifyOptions options{thread_count, follow_links, deadlines_of(deadlines), {}};
  const VerifyReport report = without_lock(options, [&] { return verify(path, options); });
  nb::list problems;
  for (const Error& problem : report.problems) problems.append(exception_of(problem));
  nb::dict result;
  result["problems"] = problems;
  result["files"] = report.files;
  result["bytes_checked"] = report.bytes_checked;
  result["bytes_unchecked"] = report.bytes_unchecked;
  result["tensors"] = report.tensors;
  result["values"] = report.values;
  nb::dict unchecked_keys;
  for (const auto& [key, transforms] : report.unchecked_keys) unchecked_keys[to_str(key)] = to_str(transforms);
  result["unchecked_keys"] = unchecked_keys;
  result["has_commit_record"] = report.has_commit_record;
  result["warnings"] = strings(report.warnings);
  return result;
}

}  // namespace

void bind_checkpoint(nb::module_& module) {
  nb::class_<Checkpoint>(module, "Checkpoint")
      .def_prop_ro("save_id",
                   [](const Checkpoint& self) -> nb::object {
                     const std::optional<SaveId> id = self.save_id();
                     return id ? to_str(to_hex(*id)) : nb::object(nb::none());
                   })
      .def_prop_ro("damage",
                   [](const Checkpoint& self) -> nb::object {
                     const std::optional<std::string> damage = self.damage();
                     return damage ? to_str(*damage) : nb::object(nb::none());
                   })
      .def("notes",
           [](const Checkpoint& self) {
             std::optional<Result<std::string>> notes;
             {
               const nb::gil_scoped_release released;
               notes.emplace(self.notes());
             }
             return to_str(unwrap(std::move(*notes)));
           })
      .def_prop_ro("format", [](const Checkpoint& self) { return to_str(std::string(name_of(self.format()))); })
      .def_prop_ro("has_transforms", &Checkpoint::has_transforms)
      .def("holds_any", &holds_any)
      .def("__len__", &Checkpoint::key_count)
      .def_prop_ro("files", [](const Checkpoint& self) { return strings(self.files()); })
      .def("file_bytes",
           [](const Checkpoint& self, const nb::str& file) {
             const std::string name = to_utf8(file);
             std::optional<Result<std::uint64_t>> bytes;
             {
               const nb::gil_scoped_release released;
               bytes.emplace(self.file_bytes(name));
             }
             return unwrap(std::move(*bytes));
           })
      .def("renamed_keys", &renamed_keys)
      .def(
          "key_stream", [](const Checkpoint& self) { return std::make_unique<KeyStream>(self); },
          nb::keep_alive<0, 1>())
      .def("tensor", &tensor_of)
      .def("tensor_form", &tensor_form_of)
      .def("value", &value_of)
      .def("nearest_keys", &nearest_keys)
      .def("load", &load_state)
      .def("read_box", &read_box)
      .def("read_payload", &read_payload);
  nb::class_<KeyStream>(module, "KeyStream").def("next", &next_keys);
  module.def("catalog_of", &catalog_of_checkpoint);
  module.def("save", &save_state);
  module.def("abandon_save", &abandon_save_with);
  module.def("consolidate", &consolidate_model);
  module.def("abandon_load", &abandon_load_with);
  module.def("tell_failed_load", &tell_failed_load_with);
  module.def("agree", &agree_with);
  module.def("open", &open_checkpoint, nb::arg("directory"), nb::arg("metadata_name") = std::string(kMetadataName),
             nb::arg("purpose") = "");
  module.def("verify", &verify_directory);
  module.def("matches_key",
             [](const nb::str& pattern, const nb::str& key) { return matches_key(to_utf8(pattern), to_utf8(key)); });
  module.def(
      "metadata_name", [](std::optional<std::uint32_t> rank) { return metadata_name(rank); }, nb::arg("rank").none());
  module.def("pause_before_restart", [](unsigned restarts) {
    const auto pause = pause_before_restart(restarts);
    return pause ? std::optional(std::chrono::duration<double>(*pause).count()) : std::nullopt;
  });
}

}  // namespace cairn::python
