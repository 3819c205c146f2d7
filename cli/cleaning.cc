#include "cleaning.h"

#include <cairn/latest.h>
#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>

#include "json_writer.h"
#include "printable.h"

namespace cairn::cli {
namespace {

std::string text_of(const CleanReport& report, bool dry_run) {
  if (report.saves.empty()) return "no dead save\n";
  const std::string_view done = dry_run ? "would remove" : "removed";
  std::string text;
  const auto out = std::back_inserter(text);
  std::size_t files = 0;
  for (const CleanedSave& save : report.saves) {
    files += save.files.size();
    fmt::format_to(out, "{}: dead save {}: {} {}, {}\n", printable(save.directory.string()), to_hex(save.save_id), done,
                   counted(save.files.size(), "file"), byte_text(save.bytes));
  }
  fmt::format_to(out, "{} {}, {}, {}\n", done, counted(report.saves.size(), "dead save"), counted(files, "file"),
                 byte_text(report.bytes));
  return text;
}

std::string json_of(const CleanReport& report, bool dry_run) {
  JsonWriter json;
  json.begin_object();
  json.key("dry_run").boolean(dry_run);
  json.key("bytes").number(report.bytes);
  json.key("saves").begin_array();
  for (const CleanedSave& save : report.saves) {
    json.begin_object();
    json.key("directory").text(save.directory.string());
    json.key("save_id").text(to_hex(save.save_id));
    json.key("bytes").number(save.bytes);
    json.key("files").begin_array();
    for (const CleanedFile& file : save.files) {
      json.begin_object();
      json.key("name").text(file.name);
      json.key("bytes").number(file.bytes);
      json.end_object();
    }
    json.end_array();
    json.end_object();
  }
  json.end_array();
  json.key("warnings").texts(report.warnings);
  json.key("problems").begin_array();
  for (const Error& problem : report.problems) json.text(problem.what());
  json.end_array();
  json.end_object();
  return std::move(json).take();
}

}  // namespace

Outcome clean(const std::filesystem::path& root, bool dry_run, bool as_json) {
  const Result<CleanReport> report = cairn::clean(root, {.dry_run = dry_run});
  if (!report) return {{}, message_of(report.error()), ExitCode::kUnreadable};
  Outcome outcome;
  outcome.data = as_json ? json_of(*report, dry_run) : text_of(*report, dry_run);
  for (const std::string& warning : report->warnings) outcome.messages += "cairn: " + printable(warning) + "\n";
  for (const Error& problem : report->problems) outcome.messages += message_of(problem);
  if (!report->problems.empty()) outcome.exit_code = ExitCode::kUnreadable;
  return outcome;
}

}  // namespace cairn::cli
