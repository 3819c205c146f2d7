#include "doctor.h"

#include <cairn/inspect.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ending_signals.h"
#include "json_writer.h"
#include "printable.h"

namespace cairn::cli {
namespace {

// One sentence. The findings have the details.
std::string verdict_of(const std::vector<MachineFinding>& findings, const std::filesystem::path& directory) {
  std::vector<std::string_view> obstacles;
  std::size_t advices = 0;
  for (const MachineFinding& finding : findings) {
    if (finding.is_obstacle) obstacles.push_back(finding.subject);
    if (!finding.advice.empty()) ++advices;
  }
  const std::string place = "'" + directory.string() + "'";
  if (!obstacles.empty()) {
    return fmt::format("durable saves into {} fail here; repair first: {}", place, fmt::join(obstacles, ", "));
  }
  const std::string rest = advices == 0 ? "" : fmt::format("; see the {} of advice above", counted(advices, "line"));
  return fmt::format("durable saves into {} and loads from it work here{}", place, rest);
}

std::string text_of(const std::vector<MachineFinding>& findings, const std::filesystem::path& directory) {
  std::string text;
  for (const MachineFinding& finding : findings) {
    fmt::format_to(std::back_inserter(text), "{:<17} {} -> {}\n", finding.subject, printable(finding.found),
                   finding.use);
    if (!finding.advice.empty()) text += fmt::format("{:<17} advice: {}\n", "", finding.advice);
  }
  return text + fmt::format("verdict: {}\n", printable(verdict_of(findings, directory)));
}

std::optional<std::string> unit_of(const MachineFinding& finding) {
  if (!finding.number) return std::nullopt;
  return finding.unit == MachineFinding::Unit::kBytes ? "bytes" : "bytes_per_second";
}

std::string json_of(const std::vector<MachineFinding>& findings, const std::filesystem::path& directory) {
  JsonWriter json;
  json.begin_object();
  json.key("directory").text(directory.string());
  json.key("findings").begin_array();
  for (const MachineFinding& finding : findings) {
    json.begin_object();
    json.key("subject").text(finding.subject);
    json.key("found").text(finding.found);
    json.key("number").number_or_null(finding.number);
    json.key("unit").text_or_null(unit_of(finding));
    json.key("use").text(finding.use);
    json.key("advice").text_or_null(finding.advice.empty() ? std::nullopt : std::optional(finding.advice));
    json.key("is_obstacle").boolean(finding.is_obstacle);
    json.end_object();
  }
  json.end_array();
  json.key("verdict").text(verdict_of(findings, directory));
  json.end_object();
  return std::move(json).take();
}

}  // namespace

Outcome examine(const std::filesystem::path& directory, bool json) {
  const EndingSignals signals;
  const Result<std::vector<MachineFinding>> findings =
      examine_machine(directory, {.interrupted = [] { return EndingSignals::caught() != 0; }});
  Outcome outcome;
  outcome.signal = EndingSignals::caught();
  if (!findings) {
    outcome.messages = message_of(findings.error());
    const bool is_usage = findings.error().code() == ErrorCode::kInvalidArgument;
    outcome.exit_code = is_usage ? ExitCode::kUsage : ExitCode::kUnreadable;
    return outcome;
  }
  const auto is_obstacle = [](const MachineFinding& finding) { return finding.is_obstacle; };
  if (std::any_of(findings->begin(), findings->end(), is_obstacle)) outcome.exit_code = ExitCode::kCheckFailed;
  outcome.data = json ? json_of(*findings, directory) : text_of(*findings, directory);
  return outcome;
}

}  // namespace cairn::cli
