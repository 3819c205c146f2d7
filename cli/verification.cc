#include "verification.h"

#include <cairn/verify.h>
#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <string>

#include "json_writer.h"
#include "printable.h"
#include "progress_bar.h"

namespace cairn::cli {
namespace {

std::string text_of(const VerifyReport& report, const std::string& directory) {
  std::string text;
  const auto out = std::back_inserter(text);
  for (const Error& problem : report.problems) fmt::format_to(out, "problem: {}\n", printable(problem.what()));
  const std::size_t problems = report.problems.size();
  fmt::format_to(out, "{}: {}\n", printable(directory), problems == 0 ? "ok" : counted(problems, "problem"));
  fmt::format_to(out, "  {}, {} in {}\n", counted(report.tensors, "tensor"), counted(report.values, "value"),
                 counted(report.files, "file"));
  fmt::format_to(out, "  {} checked by checksums\n", byte_text(report.bytes_checked));
  for (const std::string& warning : report.warnings) fmt::format_to(out, "  warning: {}\n", printable(warning));
  if (report.bytes_unchecked != 0) {
    fmt::format_to(out, "  {} without checksums\n", byte_text(report.bytes_unchecked));
  }
  if (!report.unchecked_keys.empty()) {
    const auto& [key, transforms] = report.unchecked_keys.front();
    fmt::format_to(out, "  {} not checked: stored through stream transforms, which are not undone ('{}': {})\n",
                   counted(report.unchecked_keys.size(), "key"), printable(key), printable(transforms));
  }
  if (report.format == CheckpointFormat::kSafetensors) {
    text += "  safetensors: headers, shapes and places are checked; the format has no checksums of the elements\n";
    return text;
  }
  if (report.format == CheckpointFormat::kTorchSave) {
    text += "  torch.save: one checksum per record; files before torch 1.6, and some written without CRCs, have none\n";
    return text;
  }
  if (!report.has_commit_record)
    text += "  no commit record: Cairn did not write the checkpoint, and .metadata has no checksum\n";
  return text;
}

void write_problem(JsonWriter& json, const Error& problem) {
  json.begin_object();
  json.key("code").text(name_of(problem.code()));
  json.key("message").text(problem.message());
  json.key("key").text_or_null(problem.key());
  json.key("file").text_or_null(problem.file());
  json.key("offset").number_or_null(problem.offset());
  json.key("expected").text_or_null(problem.expected());
  json.key("actual").text_or_null(problem.actual());
  json.end_object();
}

std::string json_of(const VerifyReport& report, const std::string& directory) {
  JsonWriter json;
  json.begin_object();
  json.key("directory").text(directory);
  json.key("ok").boolean(report.problems.empty());
  json.key("format").text(name_of(report.format));
  json.key("has_commit_record").boolean(report.has_commit_record);
  json.key("files").number(report.files);
  json.key("tensors").number(report.tensors);
  json.key("values").number(report.values);
  json.key("bytes_checked").number(report.bytes_checked);
  json.key("bytes_unchecked").number(report.bytes_unchecked);
  json.key("unchecked_keys").begin_array();
  for (const auto& [key, transforms] : report.unchecked_keys) {
    json.begin_object();
    json.key("key").text(key);
    json.key("transforms").text(transforms);
    json.end_object();
  }
  json.end_array();
  json.key("warnings").begin_array();
  for (const std::string& warning : report.warnings) json.text(warning);
  json.end_array();
  json.key("problems").begin_array();
  for (const Error& problem : report.problems) write_problem(json, problem);
  json.end_array();
  json.end_object();
  return std::move(json).take();
}

}  // namespace

Outcome verify(const std::filesystem::path& directory, bool json, bool follow_links) {
  VerifyOptions options{.follow_links = follow_links};
  auto bar = std::make_optional<ProgressBar>("verifying");
  options.progress = [&bar](const VerifyProgress& progress) { bar->show(progress.bytes_read, progress.bytes_total); };
  Result<VerifyReport> report = cairn::verify(directory, options);
  bar.reset();  // before any output
  if (!report) {
    const ErrorCode code = report.error().code();
    const bool is_damage = code == ErrorCode::kCorrupt || code == ErrorCode::kUnsafe;
    if (!is_damage) return unopened(report.error(), directory);
    VerifyReport damaged;
    damaged.problems.push_back(report.error());
    report = std::move(damaged);
  }
  Outcome outcome;
  outcome.data = json ? json_of(*report, directory.string()) : text_of(*report, directory.string());
  outcome.exit_code = report->problems.empty() ? ExitCode::kOk : ExitCode::kCheckFailed;
  return outcome;
}

}  // namespace cairn::cli
