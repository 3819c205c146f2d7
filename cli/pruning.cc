#include "pruning.h"

#include <cairn/retention.h>
#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

#include "duration.h"
#include "json_writer.h"
#include "printable.h"

namespace cairn::cli {
namespace {

namespace fs = std::filesystem;

struct Removals {
  std::vector<RemovedCheckpoint> removed;
  std::vector<KeptCheckpoint> kept;
  std::vector<Error> problems;
};

std::string step_text(const std::optional<std::uint64_t>& step) {
  return step ? fmt::format("step {}, ", *step) : std::string();
}

std::string line_of(const RemovedCheckpoint& removed, bool dry_run) {
  return fmt::format("{}: {}{}{} {}, {}{}\n", printable(removed.directory.string()), step_text(removed.step),
                     removed.was_interrupted ? "the rest of an interrupted removal: " : "",
                     dry_run ? "would remove" : "removed", counted(removed.files, "file"), byte_text(removed.bytes),
                     removed.keeps_directory ? "; the directory stays, with other files" : "");
}

// With the kept checkpoints if `tells_kept`.
std::string text_of(const Removals& removals, bool dry_run, bool tells_kept) {
  std::string text;
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;
  for (const RemovedCheckpoint& removed : removals.removed) {
    text += line_of(removed, dry_run);
    files += removed.files;
    bytes += removed.bytes;
  }
  for (const KeptCheckpoint& kept : removals.kept) {
    text += fmt::format("{}: {}kept: {}\n", printable(kept.directory.string()), step_text(kept.step),
                        printable(kept.reason));
  }
  const std::string_view done = dry_run ? "would remove" : "removed";
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{} {}, {}, {}", done, counted(removals.removed.size(), "checkpoint"), counted(files, "file"),
                 byte_text(bytes));
  if (tells_kept) fmt::format_to(out, "; {} {}", dry_run ? "would keep" : "kept", removals.kept.size());
  return text + "\n";
}

void write_removed(JsonWriter& json, const RemovedCheckpoint& removed) {
  json.begin_object();
  json.key("directory").text(removed.directory.string());
  json.key("step").number_or_null(removed.step);
  json.key("save_id").text_or_null(removed.save_id ? std::optional(to_hex(*removed.save_id)) : std::nullopt);
  json.key("files").number(removed.files);
  json.key("bytes").number(removed.bytes);
  json.key("was_interrupted").boolean(removed.was_interrupted);
  json.key("keeps_directory").boolean(removed.keeps_directory);
  json.key("warnings").texts(removed.warnings);
  json.end_object();
}

void write_problems(JsonWriter& json, const std::vector<Error>& problems) {
  json.key("problems").begin_array();
  for (const Error& problem : problems) json.text(problem.what());
  json.end_array();
}

std::string json_of(const Removals& removals, bool dry_run, bool tells_kept) {
  JsonWriter json;
  std::uint64_t bytes = 0;
  for (const RemovedCheckpoint& removed : removals.removed) bytes += removed.bytes;
  json.begin_object();
  json.key("dry_run").boolean(dry_run);
  json.key("bytes").number(bytes);
  json.key("removed").begin_array();
  for (const RemovedCheckpoint& removed : removals.removed) write_removed(json, removed);
  json.end_array();
  if (tells_kept) {
    json.key("kept").begin_array();
    for (const KeptCheckpoint& kept : removals.kept) {
      json.begin_object();
      json.key("directory").text(kept.directory.string());
      json.key("step").number_or_null(kept.step);
      json.key("reason").text(kept.reason);
      json.end_object();
    }
    json.end_array();
  }
  write_problems(json, removals.problems);
  json.end_object();
  return std::move(json).take();
}

// The messages and the exit code.
Outcome outcome_of(const Removals& removals) {
  Outcome outcome;
  for (const RemovedCheckpoint& removed : removals.removed) {
    for (const std::string& warning : removed.warnings) {
      outcome.messages += fmt::format("cairn: '{}': {}\n", printable(removed.directory.string()), printable(warning));
      outcome.exit_code = ExitCode::kUnreadable;
    }
  }
  for (const Error& problem : removals.problems) outcome.messages += message_of(problem);
  if (!removals.problems.empty()) outcome.exit_code = ExitCode::kUnreadable;
  return outcome;
}

Outcome wrong_usage(std::string_view what, const std::string& given) {
  return {{}, fmt::format("cairn: {}, not '{}'\n", what, printable(given)), ExitCode::kUsage};
}

// "loss:min", "loss:min:3". The name of a metric may have colons.
std::optional<RetentionRule::Best> best_of(std::string_view text) {
  RetentionRule::Best best;
  std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view word = text.substr(colon + 1);
  if (word != "min" && word != "max") {
    const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), best.count);
    if (failure != std::errc() || end != word.data() + word.size() || best.count == 0) return std::nullopt;
    text = text.substr(0, colon);
    colon = text.rfind(':');
    if (colon == std::string_view::npos) return std::nullopt;
    word = text.substr(colon + 1);
  }
  if (colon == 0 || (word != "min" && word != "max")) return std::nullopt;
  best.metric = text.substr(0, colon);
  best.order = word == "min" ? RetentionRule::Best::Order::kMin : RetentionRule::Best::Order::kMax;
  return best;
}

// Fills `rule`. Returns an outcome for a word that can't be read.
std::optional<Outcome> read_rule(const PruningOptions& options, RetentionRule& rule) {
  rule.last = options.keep_last;
  rule.every_steps = options.keep_every;
  if (!options.keep_every_time.empty()) {
    rule.every_seconds = duration_of(options.keep_every_time);
    if (!rule.every_seconds) {
      return wrong_usage("--keep-every-time takes a duration like 12h or 7d", options.keep_every_time);
    }
  }
  if (!options.newer_than.empty()) {
    rule.newer_than = duration_of(options.newer_than);
    if (!rule.newer_than) return wrong_usage("--newer-than takes a duration like 12h or 7d", options.newer_than);
  }
  for (const std::string& text : options.keep_best) {
    const std::optional<RetentionRule::Best> best = best_of(text);
    if (!best) return wrong_usage("--keep-best takes METRIC:min, METRIC:max or METRIC:min:3", text);
    rule.best.push_back(*best);
  }
  if (rule.last || rule.every_steps || rule.every_seconds || rule.newer_than || !rule.best.empty()) return std::nullopt;
  return Outcome{{},
                 "cairn: a rule is needed: --keep-last, --keep-every, --keep-every-time, --keep-best or --newer-than\n"
                 "Try 'cairn prune --help'.\n",
                 ExitCode::kUsage};
}

}  // namespace

Outcome prune(const fs::path& root, const PruningOptions& given, bool dry_run, bool as_json) {
  PruneOptions options{.adopt = given.adopt, .dry_run = dry_run};
  if (auto outcome = read_rule(given, options.rule)) return *std::move(outcome);
  Result<PruneReport> report = cairn::prune(root, options);
  if (!report) return {{}, message_of(report.error()), ExitCode::kUnreadable};
  const Removals removals{std::move(report->removed), std::move(report->kept), std::move(report->problems)};
  Outcome outcome = outcome_of(removals);
  outcome.data = as_json ? json_of(removals, dry_run, true) : text_of(removals, dry_run, true);
  return outcome;
}

Outcome remove(const std::vector<fs::path>& directories, bool dry_run, bool as_json) {
  Removals removals;
  for (const fs::path& directory : directories) {
    Result<RemovedCheckpoint> removed = remove_checkpoint(directory, {.dry_run = dry_run});
    if (removed) {
      removals.removed.push_back(*std::move(removed));
    } else {
      removals.problems.push_back(std::move(removed).error());
    }
  }
  Outcome outcome = outcome_of(removals);
  outcome.data = as_json ? json_of(removals, dry_run, false) : text_of(removals, dry_run, false);
  return outcome;
}

}  // namespace cairn::cli
