// save, load, open, verify. Python's lock is released while the engine works; Ctrl-C stops it (interrupt.h).
#include <cairn/checkpoint.h>

#include <cairn/verify.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "bound.h"
#include "catalog.h"
#include "collectives.h"
#include "errors.h"
#include "interrupt.h"
#include "text.h"

namespace cairn::python {
namespace {

// An option as Python gives it.
void take(nb::handle value, bool& option) { option = nb::cast<bool>(value); }
void take(nb::handle value, std::size_t& option) { option = nb::cast<std::size_t>(value); }
void take(nb::handle value, std::string& option) { option = to_utf8(value); }
void take(nb::handle value, Durability& option) {
  option = nb::cast<bool>(value) ? Durability::kDurable : Durability::kBuffered;
}
void take(nb::handle value, Verify& option) {
  const std::string word = to_utf8(value);
  option = word == "full" ? Verify::kFull : word == "none" ? Verify::kNone : Verify::kNeeded;
}

void take(nb::handle value, std::optional<std::uint32_t>& option) {
  if (!value.is_none()) option = nb::cast<std::uint32_t>(value);
}
void take(nb::handle value, Collectives*& option) {
  option = value.is_none() ? nullptr : &nb::cast<PythonCollectives&>(value).engine();
}

// A keyword, and the member that it sets.
template <typename Options>
struct Keyword {
  std::string_view name;
  void (*set)(Options& options, nb::handle value);
};

template <auto Member, typename Options>
void set(Options& options, nb::handle value) {
  take(value, options.*Member);
}

constexpr Keyword<LoadOptions> kLoadKeywords[] = {
    {"verify", set<&LoadOptions::verify>},
    {"allow_partial", set<&LoadOptions::allow_partial>},
    {"allow_cast", set<&LoadOptions::allow_cast>},
    {"follow_links", set<&LoadOptions::follow_links>},
    {"thread_count", set<&LoadOptions::thread_count>},
    {"direct_io", set<&LoadOptions::direct_io>},
    {"collectives", set<&LoadOptions::collectives>},
    {"own_checkpoint", set<&LoadOptions::own_checkpoint>},
};

constexpr Keyword<SaveOptions> kSaveKeywords[] = {
    {"durable", set<&SaveOptions::durability>},
    {"overwrite", set<&SaveOptions::overwrite>},
    {"file_per_item", set<&SaveOptions::file_per_item>},
    {"record_paths", set<&SaveOptions::record_paths>},
    {"dedup_to_lowest_rank", set<&SaveOptions::dedup_to_lowest_rank>},
    {"alone_as_rank", set<&SaveOptions::alone_as_rank>},
    {"checkpoint_id", set<&SaveOptions::checkpoint_id>},
    {"thread_count", set<&SaveOptions::thread_count>},
    {"direct_io", set<&SaveOptions::direct_io>},
    {"collectives", set<&SaveOptions::collectives>},
    {"coordinator_rank", set<&SaveOptions::coordinator_rank>},
};

template <typename Options, std::size_t Count>
Options options_of(const nb::kwargs& arguments, const Keyword<Options> (&keywords)[Count]) {
  Options options;
  for (const auto [key, value] : arguments) {
    const std::string name = to_utf8(key);
    const auto* const known = std::find_if(std::begin(keywords), std::end(keywords),
                                           [&](const Keyword<Options>& keyword) { return keyword.name == name; });
    if (known == std::end(keywords)) throw nb::type_error(("no such option: " + name).c_str());
    known->set(options, value);
  }
  return options;
}

// Runs `work` without Python's lock. What a signal handler raised meanwhile comes before the work's own outcome.
template <typename Options, typename Work>
auto without_lock(Options& options, const nb::kwargs& keywords, Work&& work) {
  Interrupt interrupt;
  options.interrupted = interrupt.poll();
  auto result = [&] {
    const nb::gil_scoped_release released;
    return work();
  }();
  interrupt.rethrow();
  if (options.collectives == nullptr) return unwrap(std::move(result));
  return nb::cast<PythonCollectives&>(keywords["collectives"]).unwrap(std::move(result));  // they know what was raised
}

nb::list strings(const std::vector<std::string>& texts) {
  nb::list list;
  for (const std::string& text : texts) list.append(to_str(text));
  return list;
}

// (catalog, save id, bytes written, warnings)
nb::tuple save_state(const nb::bytes& directory, const StateDict& state, const nb::kwargs& keywords) {
  SaveOptions options = options_of(keywords, kSaveKeywords);
  const std::filesystem::path path = to_filesystem_path(directory);
  SaveReport report = without_lock(options, keywords, [&] { return save(path, state, options); });
  return nb::make_tuple(SharedCatalog{report.catalog}, to_str(to_hex(report.save_id)), report.bytes_written,
                        strings(report.warnings));
}

// (conversions: [(fqn, saved dtype code, target dtype code)], keys that were missing)
nb::tuple load_state(const Checkpoint& checkpoint, StateDict& state, const nb::kwargs& keywords) {
  LoadOptions options = options_of(keywords, kLoadKeywords);
  const LoadReport report = without_lock(options, keywords, [&] { return checkpoint.load(state, options); });
  nb::list conversions;
  for (const Conversion& conversion : report.conversions) {
    conversions.append(nb::make_tuple(to_str(conversion.fqn), static_cast<int>(conversion.saved),
                                      static_cast<int>(conversion.target)));
  }
  return nb::make_tuple(conversions, strings(report.missing));
}

// Reads `box` = (offsets, sizes) of a tensor into memory that has room for it, row-major.
void read_box(const Checkpoint& checkpoint, const nb::str& fqn, const nb::tuple& box, std::uintptr_t data,
              const nb::kwargs& keywords) {
  LoadOptions options = options_of(keywords, kLoadKeywords);
  const std::string name = to_utf8(fqn);
  const CatalogTensor* tensor = checkpoint.catalog().find_tensor(name);
  if (tensor == nullptr) throw Error(Error(ErrorCode::kMissingKey, "no such tensor in the checkpoint").key(name));
  const Box wanted = unwrap(Box::make(to_extents(box[0]), to_extents(box[1])));
  void* const target = reinterpret_cast<void*>(data);  // NOLINT(performance-no-int-to-ptr): Python hands over integers
  const TensorView view = TensorView::contiguous(target, tensor->dtype, wanted.sizes());
  without_lock(options, keywords, [&] { return checkpoint.read(name, wanted, view, options); });
}

// The error of a rank that has no state, as it tells the others of it.
Error reason_of(const std::string& code, const std::string& message, const nb::dict& place,
                const nb::bytes& attachment) {
  auto named = ErrorCode::kInvalidArgument;
  for (int i = 0; i <= static_cast<int>(ErrorCode::kInternal); ++i) {
    if (name_of(static_cast<ErrorCode>(i)) == code) named = static_cast<ErrorCode>(i);
  }
  Error error = Error(named, message).attachment({attachment.c_str(), attachment.size()});
  for (const auto [name, value] : place) {
    if (value.is_none()) continue;
    const std::string field = to_utf8(name);
    if (field == "key") error = std::move(error).key(to_utf8(value));
    if (field == "file") error = std::move(error).file(to_utf8(value));
    if (field == "expected") error = std::move(error).expected(to_utf8(value));
    if (field == "actual") error = std::move(error).actual(to_utf8(value));
    if (field == "offset") error = std::move(error).offset(nb::cast<std::uint64_t>(value));
    if (field == "error_number") error = std::move(error).error_number(nb::cast<int>(value));
  }
  return error;
}

// Both raise what all ranks get.
void abandon_save_with(const std::string& code, const std::string& message, const nb::dict& place,
                       const nb::bytes& attachment, const nb::kwargs& keywords) {
  SaveOptions options = options_of(keywords, kSaveKeywords);
  const Error reason = reason_of(code, message, place, attachment);
  without_lock(options, keywords, [&] { return Result<void>(abandon_save(reason, options)); });
}

void abandon_load_with(const std::string& code, const std::string& message, const nb::dict& place,
                       const nb::bytes& attachment, const nb::kwargs& keywords) {
  LoadOptions options = options_of(keywords, kLoadKeywords);
  const Error reason = reason_of(code, message, place, attachment);
  without_lock(options, keywords, [&] { return Result<void>(abandon_load(reason, options)); });
}

nb::bytes read_payload(const Checkpoint& checkpoint, const nb::str& fqn, const nb::kwargs& keywords) {
  LoadOptions options = options_of(keywords, kLoadKeywords);
  const std::string name = to_utf8(fqn);
  const std::string payload = without_lock(options, keywords, [&] { return checkpoint.read_payload(name, options); });
  return nb::bytes(payload.data(), payload.size());
}

std::shared_ptr<Checkpoint> open_checkpoint(const nb::bytes& directory, const std::string& metadata_name) {
  const std::filesystem::path path = to_filesystem_path(directory);
  std::optional<Result<Checkpoint>> opened;
  {
    const nb::gil_scoped_release released;
    opened.emplace(open(path, metadata_name));
  }
  return std::make_shared<Checkpoint>(unwrap(std::move(*opened)));
}

nb::dict verify_directory(const nb::bytes& directory, std::size_t thread_count, bool follow_links) {
  const std::filesystem::path path = to_filesystem_path(directory);
  std::optional<Result<VerifyReport>> verified;
  {
    const nb::gil_scoped_release released;
    verified.emplace(verify(path, thread_count, follow_links));
  }
  const VerifyReport report = unwrap(std::move(*verified));
  nb::list problems;
  for (const Error& problem : report.problems) problems.append(exception_of(problem));
  nb::dict result;
  result["problems"] = problems;
  result["files"] = report.files;
  result["bytes_checked"] = report.bytes_checked;
  result["bytes_unchecked"] = report.bytes_unchecked;
  result["tensors"] = report.tensors;
  result["values"] = report.values;
  result["has_commit_record"] = report.has_commit_record;
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
      .def("load", &load_state)
      .def("read_box", &read_box)
      .def("read_payload", &read_payload);
  module.def("catalog_of", [](std::shared_ptr<Checkpoint> checkpoint) {
    const Catalog* catalog = &checkpoint->catalog();
    return SharedCatalog{std::shared_ptr<const Catalog>(std::move(checkpoint), catalog)};
  });
  module.def("save", &save_state);
  module.def("abandon_save", &abandon_save_with);
  module.def("abandon_load", &abandon_load_with);
  module.def("open", &open_checkpoint, nb::arg("directory"), nb::arg("metadata_name") = ".metadata");
  module.def("verify", &verify_directory);
}

}  // namespace cairn::python
