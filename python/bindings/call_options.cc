#include "call_options.h"

#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>
#include <tuple>

#include "text.h"

namespace cairn::python {
namespace {

// An option from a Python keyword.
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

void take(nb::handle value, SaveDeadlines& option) { option = deadlines_of(value); }

// Called with Python's lock; False stops the save. The caller's keywords keep the callable alive.
void take(nb::handle value, std::function<Result<void>()>& option) {
  if (value.is_none()) return;
  option = [value]() -> Result<void> {
    const nb::gil_scoped_acquire held;
    try {
      if (nb::cast<bool>(value())) return {};
    } catch (nb::python_error& error) {
      error.discard_as_unraisable(value);
    }
    return Error(ErrorCode::kCancelled, "before_commit returned False or raised an exception");
  };
}

// [(old name, new name), ...]
void take(nb::handle value, std::vector<KeyRename>& option) { option = renames_of(value); }

// (file numbers by key, sharded, for consolidation)
void take(nb::handle value, std::optional<SafetensorsForm>& option) {
  if (value.is_none()) return;
  const auto [numbers, sharded, for_consolidation] = nb::cast<std::tuple<nb::dict, bool, bool>>(value);
  option.emplace();
  for (const auto [key, number] : numbers)
    option->file_numbers.emplace_back(to_utf8(key), nb::cast<std::uint32_t>(number));
  option->sharded = sharded;
  option->for_consolidation = for_consolidation;
}

// A keyword, and the member set by the keyword.
template <typename Options>
struct Keyword {
  std::string_view name;
  void (*set)(Options& options, nb::handle value);
};

template <auto Member, typename Options>
void set(Options& options, nb::handle value) {
  take(value, options.*Member);
}

template <auto Member, typename Options>
void set_bytes(Options& options, nb::handle value) {
  const auto bytes = nb::cast<nb::bytes>(value);
  options.*Member = std::string(bytes.c_str(), bytes.size());
}

constexpr Keyword<LoadOptions> kLoadKeywords[] = {
    {"verify", set<&LoadOptions::verify>},
    {"allow_partial", set<&LoadOptions::allow_partial>},
    {"allow_cast", set<&LoadOptions::allow_cast>},
    {"follow_links", set<&LoadOptions::follow_links>},
    {"silent", set<&LoadOptions::silent>},
    {"renames", set<&LoadOptions::renames>},
    {"thread_count", set<&LoadOptions::thread_count>},
    {"direct_io", set<&LoadOptions::direct_io>},
    {"collectives", set<&LoadOptions::collectives>},
    {"broadcast_replicas", set<&LoadOptions::broadcast_replicas>},
    {"own_checkpoint", set<&LoadOptions::own_checkpoint>},
    {"take_archive", [](LoadOptions&, nb::handle) {}},  // of load_state()
};

constexpr Keyword<SaveOptions> kSaveKeywords[] = {
    {"durable", set<&SaveOptions::durability>},
    {"overwrite", set<&SaveOptions::overwrite>},
    {"overwrite_pinned", set<&SaveOptions::overwrite_pinned>},
    {"single_writer", set<&SaveOptions::single_writer>},
    {"file_per_item", set<&SaveOptions::file_per_item>},
    {"record_paths", set<&SaveOptions::record_paths>},
    {"dedup_to_lowest_rank", set<&SaveOptions::dedup_to_lowest_rank>},
    {"alone_as_rank", set<&SaveOptions::alone_as_rank>},
    {"checkpoint_id", set<&SaveOptions::checkpoint_id>},
    {"metadata_attributes", set_bytes<&SaveOptions::metadata_attributes>},
    {"notes", set<&SaveOptions::notes>},
    {"safetensors", set<&SaveOptions::safetensors>},
    {"thread_count", set<&SaveOptions::thread_count>},
    {"direct_io", set<&SaveOptions::direct_io>},
    {"deadlines", set<&SaveOptions::deadlines>},
    {"before_commit", set<&SaveOptions::before_commit>},
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

// The errno of the record goes into the error itself, by `place`.
ExceptionRecord exception_record_of(const nb::tuple& record) {
  ExceptionRecord made{to_utf8(record[0]), to_utf8(record[1]), {}};
  for (const nb::handle frame : nb::cast<nb::list>(record[3])) {
    const auto [file, line, function, text] = nb::cast<std::tuple<nb::str, std::uint64_t, nb::str, nb::str>>(frame);
    made.frames.push_back({to_utf8(file), line, to_utf8(function), to_utf8(text)});
  }
  return made;
}

}  // namespace

SaveOptions save_options_of(const nb::kwargs& keywords) { return options_of(keywords, kSaveKeywords); }
LoadOptions load_options_of(const nb::kwargs& keywords) { return options_of(keywords, kLoadKeywords); }

std::vector<KeyRename> renames_of(nb::handle pairs) {
  std::vector<KeyRename> renames;
  for (const nb::handle pair : pairs) {
    const nb::object names = nb::borrow(pair);
    renames.push_back({to_utf8(names[0]), to_utf8(names[1])});
  }
  return renames;
}

Error reason_of(const nb::tuple& reason) {
  const std::string code = to_utf8(reason[0]);
  const nb::dict place = nb::cast<nb::dict>(reason[2]);
  const nb::object record = reason[3];
  auto named = ErrorCode::kInvalidArgument;
  for (int i = 0; i <= static_cast<int>(ErrorCode::kInternal); ++i) {
    if (name_of(static_cast<ErrorCode>(i)) == code) named = static_cast<ErrorCode>(i);
  }
  Error error(named, to_utf8(reason[1]));
  if (!record.is_none()) error = std::move(error).exception(exception_record_of(nb::cast<nb::tuple>(record)));
  for (const auto [name, value] : place) {
    if (value.is_none()) continue;
    const std::string field = to_utf8(name);
    if (field == "key") error = std::move(error).key(to_utf8(value));
    if (field == "file") error = std::move(error).file(to_utf8(value));
    if (field == "expected") error = std::move(error).expected(to_utf8(value));
    if (field == "actual") error = std::move(error).actual(to_utf8(value));
    if (field == "offset") error = std::move(error).offset(nb::cast<std::uint64_t>(value));
    if (field == "earlier_save") error = std::move(error).earlier_save(to_utf8(value));
    if (field == "error_number") error = std::move(error).error_number(nb::cast<int>(value));
  }
  return error;
}

SaveDeadlines deadlines_of(nb::handle seconds) {
  const auto [progress, sync, publish] = nb::cast<std::tuple<double, double, double>>(seconds);
  const auto milliseconds = [](double number) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(number * 1000));
  };
  return {milliseconds(progress), milliseconds(sync), milliseconds(publish)};
}

nb::list strings(const std::vector<std::string>& texts) {
  nb::list list;
  for (const std::string& text : texts) list.append(to_str(text));
  return list;
}

}  // namespace cairn::python
