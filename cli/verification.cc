#include "verification.h"

#include <cairn/inspect.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "json_writer.h"
#include "printable.h"

namespace cairn::cli {
namespace {

// kNotOpened: a damage prevented that the checkpoint was opened; of the report only the problems count.
enum class Reading : std::uint8_t { kOpened, kNotOpened };

std::string text_of(const VerifyReport& report, const std::string& directory, Reading reading) {
  std::string text;
  const auto out = std::back_inserter(text);
  for (const Error& problem : report.problems) fmt::format_to(out, "problem: {}\n", error_text(problem));
  const std::size_t problems = report.problems.size();
  fmt::format_to(out, "{}: {}\n", printable(directory), problems == 0 ? "ok" : counted(problems, "problem"));
  if (reading == Reading::kNotOpened) return text + "  nothing more is checked: the checkpoint could not be opened\n";
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
  if (report.format == CheckpointFormat::kTorchCheckpointing) {
    text +=
        "  torch_checkpointing: one checksum per record of a .pt file; metadata.pkl, JSON, raw and safetensors files "
        "have none\n";
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

void write_report(JsonWriter& json, const VerifyReport& report, const std::string& directory, Reading reading) {
  json.begin_object();
  json.key("directory").text(directory);
  json.key("ok").boolean(report.problems.empty());
  json.key("format").text(name_of(report.format));
  json.key("has_commit_record");
  if (reading == Reading::kOpened) {
    json.boolean(report.has_commit_record);
  } else {
    json.null();
  }
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
  json.key("warnings").texts(report.warnings);
  json.key("problems").begin_array();
  for (const Error& problem : report.problems) write_problem(json, problem);
  json.end_array();
  json.end_object();
}

// The report of one directory, or the outcome for a directory without a checkpoint that can be opened.
struct Checked {
  std::filesystem::path directory;
  VerifyReport report = {};
  Reading reading = Reading::kOpened;
  std::optional<Error> error = {};  // the report is then empty
  Outcome outcome = {};             // without data

  std::string text() const { return error ? std::string() : text_of(report, directory.string(), reading); }
  void write(JsonWriter& json) const {
    if (!error) return write_report(json, report, directory.string(), reading);
    json.begin_object();
    json.key("directory").text(directory.string());
    json.key("ok").boolean(false);
    json.key("error").text(error->what());
    json.end_object();
  }
};

Checked check(const std::filesystem::path& directory, bool follow_links) {
  Checked checked{directory};
  Result<VerifyReport> report = cairn::verify(directory, {.follow_links = follow_links});
  if (report) {
    checked.report = *std::move(report);
  } else {
    const ErrorCode code = report.error().code();
    const bool is_damage = code == ErrorCode::kCorrupt || code == ErrorCode::kUnsafe;
    if (!is_damage) {
      checked.outcome = unopened(report.error(), directory);
      checked.error = report.error();
      return checked;
    }
    checked.report.problems.push_back(report.error());
    checked.reading = Reading::kNotOpened;
  }
  checked.outcome.exit_code = checked.report.problems.empty() ? ExitCode::kOk : ExitCode::kCheckFailed;
  return checked;
}

std::string summary_of(const std::map<ExitCode, std::uint64_t>& counts, std::size_t total) {
  std::string text = counted(total, "checkpoint") + ":";
  for (const auto& [code, count] : counts) {
    const std::string_view meaning = code == ExitCode::kOk            ? "ok"
                                     : code == ExitCode::kCheckFailed ? "with problems"
                                                                      : "not readable";
    text += fmt::format("{} {} {}", text.ends_with(':') ? "" : ",", count, meaning);
  }
  return text + "\n";
}

}  // namespace

Outcome verify(const std::vector<std::filesystem::path>& directories, bool as_json, bool follow_links,
               ProgressBar& bar) {
  const bool is_list = directories.size() > 1;
  Outcome outcome;
  JsonWriter json;
  std::map<ExitCode, std::uint64_t> counts;
  if (is_list) {
    json.begin_object();
    json.key("checkpoints").begin_array();
  }
  for (const std::filesystem::path& directory : directories) {
    Checked checked = check(directory, follow_links);
    outcome.exit_code = std::max(outcome.exit_code, checked.outcome.exit_code);
    ++counts[checked.outcome.exit_code];
    if (as_json && (is_list || !checked.error)) checked.write(json);
    if (!is_list) {
      outcome.data = as_json ? std::move(json).take() : checked.text();
      if (checked.error) outcome.data.clear();
      outcome.messages = std::move(checked.outcome.messages);
      return outcome;
    }
    if (!as_json) bar.print(checked.text(), stdout);
    bar.print(checked.outcome.messages, stderr);
  }
  if (as_json) {
    json.end_array();
    json.key("ok").boolean(outcome.exit_code == ExitCode::kOk);
    json.end_object();
    outcome.data = std::move(json).take();
  } else {
    outcome.data = summary_of(counts, directories.size());
  }
  return outcome;
}

}  // namespace cairn::cli
