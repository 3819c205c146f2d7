#include "repairing.h"

#include <cairn/repair.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "json_writer.h"
#include "printable.h"

namespace cairn::cli {
namespace {

constexpr std::size_t kLinesMax = 20;  // of lost tensors, of lost values, and of missing files

std::string_view name_of(RepairReport::Metadata metadata) {
  switch (metadata) {
    case RepairReport::Metadata::kGood: return "good";
    case RepairReport::Metadata::kRebuilt: return "rebuilt";
    case RepairReport::Metadata::kUnusable: return "unusable";
    case RepairReport::Metadata::kDataLost: return "data lost";
    case RepairReport::Metadata::kNone: return "none";
  }
  return "";
}

std::string content_of(const RepairReport& report) {
  return fmt::format("{} ({} and {} in {})", counted(report.tensors + report.values, "key"),
                     counted(report.tensors, "tensor"), counted(report.values, "value"),
                     counted(report.files, "data file"));
}

std::string headline_of(const RepairReport& report, bool dry_run) {
  switch (report.metadata) {
    case RepairReport::Metadata::kGood: return "the metadata is good, and agrees with the data files";
    case RepairReport::Metadata::kRebuilt:
      return fmt::format("{} the metadata of save {}{}: {}", dry_run ? "would rebuild" : "rebuilt",
                         report.save_id ? to_hex(*report.save_id) : "",
                         report.is_complete ? "" : ", of which data are lost", content_of(report));
    case RepairReport::Metadata::kUnusable: return "the metadata is lost or broken, and was not rebuilt";
    case RepairReport::Metadata::kDataLost: return "the metadata is intact, and was not changed; data files are lost";
    case RepairReport::Metadata::kNone: return "no checkpoint: nothing to rebuild";
  }
  return "";
}

std::string lost_line(const LostElements& lost) {
  std::string line = fmt::format("lost: {} {}", printable(lost.key), to_string(lost.shape));
  if (lost.regions.empty()) return line + ": in many parts\n";
  fmt::format_to(std::back_inserter(line), ": {}", counted(static_cast<std::uint64_t>(lost.elements), "element"));
  for (std::size_t i = 0; i < std::min<std::size_t>(lost.regions.size(), 3); ++i) {
    line += (i == 0 ? ", in " : "; ") + to_string(lost.regions[i]);
  }
  return line + (lost.regions.size() > 3 ? "; and more\n" : "\n");
}

// A line for each entry, and a line for the number of the entries beyond the limit.
template <typename Entries, typename Line>
void append_lines(std::string& text, const Entries& entries, std::string_view noun, Line&& line) {
  for (std::size_t i = 0; i < std::min(entries.size(), kLinesMax); ++i) text += line(entries[i]);
  if (entries.size() <= kLinesMax) return;
  text += fmt::format("... and {} (--json: all)\n", counted(entries.size() - kLinesMax, noun));
}

std::string text_of(const RepairReport& report, const std::filesystem::path& directory, bool dry_run) {
  const std::string place = printable(directory.string());
  std::string text = fmt::format("{}: {}\n", place, headline_of(report, dry_run));
  if (!report.damaged_name.empty()) {
    text += fmt::format("the broken file is kept as '{}'\n", printable(report.damaged_name));
  }
  if (report.missing_files > 0) text += fmt::format("missing: {}\n", counted(report.missing_files, "data file"));
  append_lines(text, report.missing, "data file",
               [](const std::string& name) { return "missing: " + printable(name) + "\n"; });
  append_lines(text, report.lost, "tensor", lost_line);
  append_lines(text, report.lost_values, "value",
               [](const std::string& key) { return "lost: " + printable(key) + ", a value\n"; });
  const std::string_view done = dry_run ? "would remove" : "removed";
  for (const CleanedSave& save : report.cleaned) {
    text += fmt::format("dead save {}: {} {}, {}\n", to_hex(save.save_id), done, counted(save.files.size(), "file"),
                        byte_text(save.bytes));
  }
  if (report.metadata == RepairReport::Metadata::kRebuilt && !dry_run) {
    text += fmt::format("next: 'cairn verify {}' reads every byte\n", place);
  }
  return text;
}

void write_lost(JsonWriter& json, const LostElements& lost) {
  json.begin_object();
  json.key("key").text(lost.key);
  json.key("shape").begin_array();
  for (const std::int64_t size : lost.shape) json.number(size);
  json.end_array();
  json.key("elements").number_or_null(lost.regions.empty() ? std::nullopt : std::optional(lost.elements));
  json.key("regions").begin_array();
  for (const Box& box : lost.regions) {
    json.begin_object();
    json.key("offsets").begin_array();
    for (const std::int64_t offset : box.offsets()) json.number(offset);
    json.end_array();
    json.key("sizes").begin_array();
    for (const std::int64_t size : box.sizes()) json.number(size);
    json.end_array();
    json.end_object();
  }
  json.end_array();
  json.end_object();
}

void write_lists(JsonWriter& json, const RepairReport& report) {
  json.key("missing").texts(report.missing);
  json.key("lost").begin_array();
  for (const LostElements& lost : report.lost) write_lost(json, lost);
  json.end_array();
  json.key("lost_values").texts(report.lost_values);
  json.key("saves").begin_array();
  for (const FoundSave& save : report.saves) {
    json.begin_object();
    json.key("save_id").text(to_hex(save.save_id));
    json.key("files").number(save.files);
    json.key("expected_files").number_or_null(save.expected_files);
    json.key("is_leftover").boolean(save.is_leftover);
    json.end_object();
  }
  json.end_array();
  json.key("cleaned").begin_array();
  for (const CleanedSave& save : report.cleaned) {
    json.begin_object();
    json.key("save_id").text(to_hex(save.save_id));
    json.key("files").number(std::uint64_t{save.files.size()});
    json.key("bytes").number(save.bytes);
    json.end_object();
  }
  json.end_array();
  json.key("warnings").texts(report.warnings);
  json.key("problems").begin_array();
  for (const Error& problem : report.problems) json.text(error_text(problem));
  json.end_array();
}

std::string json_of(const RepairReport& report, const std::filesystem::path& directory, bool dry_run) {
  JsonWriter json;
  json.begin_object();
  json.key("directory").text(directory.string());
  json.key("dry_run").boolean(dry_run);
  json.key("metadata").text(name_of(report.metadata));
  json.key("is_complete").boolean(report.is_complete);
  json.key("save_id").text_or_null(report.save_id ? std::optional(to_hex(*report.save_id)) : std::nullopt);
  json.key("files").number(report.files);
  json.key("tensors").number(report.tensors);
  json.key("values").number(report.values);
  json.key("damaged_name")
      .text_or_null(report.damaged_name.empty() ? std::nullopt : std::optional(report.damaged_name));
  json.key("missing_files").number(report.missing_files);
  write_lists(json, report);
  json.end_object();
  return std::move(json).take();
}

}  // namespace

Outcome repair(const std::filesystem::path& directory, const RepairingOptions& given, bool dry_run, bool as_json) {
  RepairOptions options{.dry_run = dry_run, .partial = given.partial, .save = given.save, .rank = given.rank};
  const Result<RepairReport> report = cairn::repair(directory, options);
  if (!report) {
    const bool is_usage = report.error().code() == ErrorCode::kInvalidArgument && report.error().error_number() == 0;
    return {{}, message_of(report.error()), is_usage ? ExitCode::kUsage : ExitCode::kUnreadable};
  }
  Outcome outcome;
  outcome.data = as_json ? json_of(*report, directory, dry_run) : text_of(*report, directory, dry_run);
  for (const std::string& warning : report->warnings)
    outcome.messages += "cairn: warning: " + printable(warning) + "\n";
  for (const Error& problem : report->problems) outcome.messages += message_of(problem);
  const bool is_prevented = std::ranges::any_of(
      report->problems, [](const Error& problem) { return problem.code() == ErrorCode::kUnavailable; });
  const bool is_none = report->metadata == RepairReport::Metadata::kNone;
  if (!report->is_complete && !is_none) outcome.exit_code = ExitCode::kCheckFailed;
  if ((is_none && report->cleaned.empty()) || is_prevented) outcome.exit_code = ExitCode::kUnreadable;
  return outcome;
}

}  // namespace cairn::cli
