#include "notes_text.h"

#include <cairn/result.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "printable.h"

namespace cairn::cli {
namespace {

constexpr std::size_t kMetricsMax = 4;
constexpr std::size_t kNotesBytesMax = 400;  // of a line of text

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

std::string text_of(const std::vector<std::pair<std::string, double>>& metrics, std::size_t count_max) {
  std::string text;
  for (const auto& [name, number] : metrics) {
    if (count_max-- == 0) return text + ", ...";
    if (!text.empty()) text += ", ";
    text += fmt::format("{} {}", printable(name), number);
  }
  return text;
}

}  // namespace

ShownNotes notes_of(const Checkpoint& checkpoint, Outcome& outcome) {
  Result<std::string> json = checkpoint.notes();
  auto metrics = checkpoint.metrics();
  if (json && metrics) return {std::move(*json), std::move(*metrics)};
  outcome.messages += message_of(json ? metrics.error() : json.error());
  outcome.exit_code = ExitCode::kUnreadable;
  return {};
}

std::string metrics_text(const ShownNotes& notes) { return text_of(notes.metrics, kMetricsMax); }

std::string notes_lines(const ShownNotes& notes) {
  if (notes.json.empty()) return {};
  std::string lines;
  if (!notes.metrics.empty()) lines = "  metrics  " + text_of(notes.metrics, notes.metrics.size()) + "\n";
  std::size_t shown = std::min(notes.json.size(), kNotesBytesMax);
  while (shown < notes.json.size() && continues_character(notes.json[shown])) --shown;
  JsonWriter json;
  json.json(notes.json.substr(0, shown));
  lines += "  notes    " + json.drain();
  if (shown < notes.json.size()) lines += fmt::format("... ({}; --json has all)", byte_text(notes.json.size()));
  return lines + "\n";
}

}  // namespace cairn::cli
