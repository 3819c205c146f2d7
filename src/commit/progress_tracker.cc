#include "commit/progress_tracker.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "core/whole_number.h"

namespace cairn::commit {
namespace {

using storage::OperationKind;

constexpr std::array<std::string_view, 4> kKindNames{"write", "sync", "names", "heartbeat"};
constexpr std::string_view kNoCall = "-";
// Wide enough for every value.
constexpr std::size_t kNameWidth = 10;
constexpr std::size_t kNumberWidth = 20;
constexpr std::size_t kWhatWidth = 96;  // the rest of a longer description is left out

template <std::size_t Count>
std::optional<std::size_t> position_of(const std::array<std::string_view, Count>& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  return found != names.end() ? std::optional<std::size_t>(found - names.begin()) : std::nullopt;
}

void append_padded(std::string& line, std::string_view text, std::size_t width) {
  line += ' ';
  line += text.substr(0, width);
  line.append(width - std::min(width, text.size()), ' ');
}

std::optional<SavePhase> phase_of(std::string_view name) {
  for (std::uint8_t number = 0; number <= static_cast<std::uint8_t>(SavePhase::kEnded); ++number) {
    if (name_of(static_cast<SavePhase>(number)) == name) return static_cast<SavePhase>(number);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> stall_in(const ProgressReport& report, const SaveDeadlines& deadlines) {
  if (!report.pending || report.pending->age <= limit_of(report.pending->kind, deadlines)) return std::nullopt;
  return storage::stall(*report.pending, deadlines);
}

ProgressReport ProgressTracker::report(const storage::OperationWatch* operations) const {
  ProgressReport report{phase, bytes_written, bytes_total, std::nullopt};
  if (operations == nullptr) return report;
  report.pending = operations->oldest();
  if (report.phase == SavePhase::kWriting && operations->is_syncing()) report.phase = SavePhase::kSyncing;
  return report;
}

std::string encode_progress_line(const ProgressReport& report) {
  std::string line = "progress";
  append_padded(line, name_of(report.phase), kNameWidth);
  append_padded(line, std::to_string(report.bytes_written), kNumberWidth);
  append_padded(line, std::to_string(report.bytes_total), kNumberWidth);
  const auto& pending = report.pending;
  append_padded(line, pending ? kKindNames[static_cast<std::size_t>(pending->kind)] : kNoCall, kNameWidth);
  append_padded(line, std::to_string(pending ? pending->age.count() : 0), kNumberWidth);
  std::string what = pending ? pending->what : "";
  std::replace(what.begin(), what.end(), '\n', '?');
  append_padded(line, what, kWhatWidth);
  return line + "\n";
}

std::optional<ProgressReport> decode_progress_line(std::string_view line) {
  std::istringstream words{std::string(line)};
  std::string name, phase, written, total, kind, age, what;
  words >> name >> phase >> written >> total >> kind >> age;
  std::getline(words >> std::ws, what);
  what.erase(what.find_last_not_of(" \n") + 1);
  const auto known_phase = phase_of(phase);
  const auto written_bytes = whole_number<std::uint64_t>(written);
  const auto total_bytes = whole_number<std::uint64_t>(total);
  const auto milliseconds = whole_number<std::uint32_t>(age);
  if (name != "progress" || !known_phase || !written_bytes || !total_bytes || !milliseconds) return std::nullopt;
  ProgressReport report{*known_phase, *written_bytes, *total_bytes, std::nullopt};
  if (kind == kNoCall) return report;
  const auto kind_number = position_of(kKindNames, kind);
  if (!kind_number) return std::nullopt;
  report.pending = {static_cast<OperationKind>(*kind_number), std::move(what),
                    std::chrono::milliseconds(*milliseconds)};
  return report;
}

}  // namespace cairn::commit
