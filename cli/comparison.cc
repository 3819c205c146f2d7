#include "comparison.h"

#include <cairn/inspect.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "json_writer.h"
#include "printable.h"

namespace cairn::cli {
namespace {

using Kind = KeyDifference::Kind;

// "5 of 6 elements differ; largest difference 0.5 at [1, 2], relative 0.1; NaN on one side: 1"
std::string elements_text(const ElementDifference& elements, bool is_tolerated) {
  std::string text = fmt::format("{} of {} elements differ{}", is_tolerated ? elements.unequal : elements.differing,
                                 elements.elements, is_tolerated ? " within the tolerance" : "");
  const auto out = std::back_inserter(text);
  if (elements.are_numbers) {
    fmt::format_to(out, "; largest difference {:.6g}", elements.largest_absolute);
    if (!elements.largest_at.empty()) fmt::format_to(out, " at {}", to_string(elements.largest_at));
    fmt::format_to(out, ", relative {:.6g}", elements.largest_relative);
    if (elements.nan_on_one_side != 0) fmt::format_to(out, "; NaN on one side: {}", elements.nan_on_one_side);
  } else if (!elements.first_differing.empty()) {
    fmt::format_to(out, "; the first at {}", to_string(elements.first_differing));
  }
  return text;
}

std::string line_of(const KeyDifference& difference, bool is_tolerated) {
  const std::string key = printable(difference.key);
  const std::string a = difference.a.empty() ? "(none)" : printable(difference.a);
  const std::string b = difference.b.empty() ? "(none)" : printable(difference.b);
  switch (difference.kind) {
    case Kind::kOnlyInA: return fmt::format("only in A: {}  {}\n", key, a);
    case Kind::kOnlyInB: return fmt::format("only in B: {}  {}\n", key, b);
    case Kind::kElements:
      if (!difference.elements) return fmt::format("elements: {}  {}: the stored bytes differ\n", key, a);
      return fmt::format("elements: {}  {}: {}\n", key, a, elements_text(*difference.elements, is_tolerated));
    case Kind::kDType:
      if (!difference.elements) return fmt::format("dtype: {}  {} | {}\n", key, a, b);
      return fmt::format("dtype: {}  {} | {}: {}\n", key, a, b, elements_text(*difference.elements, is_tolerated));
    default:
      return fmt::format("{}: {}{}  {} | {}\n", name_of(difference.kind), key, printable(difference.place), a, b);
  }
}

std::string text_of(const DiffReport& report) {
  std::string text;
  for (const KeyDifference& difference : report.differences) text += line_of(difference, false);
  for (const KeyDifference& difference : report.tolerated) text += line_of(difference, true);
  const std::string compared =
      fmt::format("{} and {} on both sides, {} of tensors compared", counted(report.tensors, "tensor"),
                  counted(report.values, "value"), byte_text(report.bytes_compared));
  if (report.differences.empty()) return text + fmt::format("equal: {}\n", compared);
  return text + fmt::format("different: {} ({})\n", counted(report.differences.size(), "key"), compared);
}

void write_index(JsonWriter& json, std::string_view name, const Extents& index) {
  json.key(name).begin_array();
  for (const std::int64_t number : index.span()) json.number(number);
  json.end_array();
}

void write_difference(JsonWriter& json, const KeyDifference& difference) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? std::nullopt : std::optional<std::string>(text);
  };
  json.begin_object();
  json.key("key").text(difference.key);
  json.key("kind").text(name_of(difference.kind));
  json.key("a").text_or_null(text_or_null(difference.a));
  json.key("b").text_or_null(text_or_null(difference.b));
  if (difference.kind == Kind::kValue) json.key("place").text(difference.place);
  if (difference.elements) {
    const ElementDifference& elements = *difference.elements;
    json.key("elements").number(elements.elements);
    json.key("unequal").number(elements.unequal);
    json.key("differing").number(elements.differing);
    if (elements.differing != 0) write_index(json, "first_differing", elements.first_differing);
    if (elements.are_numbers) {
      json.key("nan_on_one_side").number(elements.nan_on_one_side);
      json.key("largest_absolute").number(elements.largest_absolute);
      json.key("largest_relative").number(elements.largest_relative);
      if (elements.largest_absolute != 0) write_index(json, "largest_at", elements.largest_at);
    }
  }
  json.end_object();
}

std::string json_of(const DiffReport& report, const std::string& a, const std::string& b) {
  JsonWriter json;
  json.begin_object();
  json.key("a").text(a);
  json.key("b").text(b);
  json.key("equal").boolean(report.differences.empty());
  json.key("tensors").number(report.tensors);
  json.key("values").number(report.values);
  json.key("bytes_compared").number(report.bytes_compared);
  json.key("differences").begin_array();
  for (const KeyDifference& difference : report.differences) write_difference(json, difference);
  json.end_array();
  json.key("tolerated").begin_array();
  for (const KeyDifference& difference : report.tolerated) write_difference(json, difference);
  json.end_array();
  json.end_object();
  return std::move(json).take();
}

}  // namespace

Outcome compare(const std::filesystem::path& a, const std::filesystem::path& b, const ComparisonOptions& options) {
  const DiffOptions how{.tolerance = options.tolerance,
                        .ignore_dtype = options.ignore_dtype,
                        .keys = options.patterns,
                        .follow_links = options.follow_links};
  const Result<DiffReport> report = cairn::diff(a, b, how);
  if (!report) return {{}, message_of(report.error()), ExitCode::kDiffTrouble};
  Outcome outcome;
  outcome.data = options.json ? json_of(*report, a.string(), b.string()) : text_of(*report);
  outcome.exit_code = report->differences.empty() ? ExitCode::kOk : ExitCode::kCheckFailed;
  return outcome;
}

}  // namespace cairn::cli
