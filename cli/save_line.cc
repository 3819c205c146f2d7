#include "save_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "printable.h"
#include "progress_bar.h"
#include "status.h"

namespace cairn::cli {
namespace {

constexpr double kLongCallSeconds = 1;      // a shorter call is not shown
constexpr double kLateSignSeconds = 10;     // two heartbeats
constexpr std::size_t kBarColumnsMin = 60;  // also on a narrow terminal

std::uint64_t rest_of(const SaveProgress& progress) {
  return progress.bytes_total - std::min(progress.bytes_written, progress.bytes_total);
}

std::string name_of_writer(const SaveInFlightWriter& writer) {
  return writer.rank ? fmt::format("rank {}", *writer.rank) : "coordinator";
}

std::string writers_of(const SaveInFlight& save) {
  std::string text = "  " + counted(save.writers.size(), "writer");
  const auto dead = std::count_if(save.writers.begin(), save.writers.end(), [](const SaveInFlightWriter& writer) {
    return writer.state == SaveInFlightWriter::State::kDead;
  });
  if (dead > 0) text += fmt::format(", {} dead", dead);
  const auto late = std::max_element(save.writers.begin(), save.writers.end(), [](const auto& a, const auto& b) {
    return a.seconds_since_sign < b.seconds_since_sign;
  });
  if (late != save.writers.end() && late->seconds_since_sign > kLateSignSeconds) {
    text += fmt::format(", {} silent for {:.0f} s", name_of_writer(*late), late->seconds_since_sign);
  }
  return text;
}

std::string longest_call_of(const SaveInFlight& save) {
  const auto longest = std::max_element(save.writers.begin(), save.writers.end(), [](const auto& a, const auto& b) {
    return a.seconds_without_progress < b.seconds_without_progress;
  });
  if (longest == save.writers.end() || longest->pending_call.empty()) return {};
  if (longest->seconds_without_progress < kLongCallSeconds) return {};
  return fmt::format("  {}: {} for {:.1f} s", name_of_writer(*longest), printable(longest->pending_call),
                     longest->seconds_without_progress);
}

}  // namespace

SaveProgress progress_of_all(const SaveInFlight& save) {
  SaveProgress sum;
  const SaveProgress* slowest = nullptr;
  for (const SaveInFlightWriter& writer : save.writers) {
    if (!writer.progress) continue;
    sum.bytes_written += writer.progress->bytes_written;
    sum.bytes_total += writer.progress->bytes_total;
    if (slowest == nullptr || rest_of(*writer.progress) > rest_of(*slowest)) slowest = &*writer.progress;
  }
  if (slowest != nullptr) sum.phase = slowest->phase;
  return sum;
}

WatchedSave::WatchedSave(SaveInFlight save, Clock::time_point now)
    : save_(std::move(save)),
      first_(now),
      first_bytes_(progress_of_all(save_).bytes_written),
      last_(now),
      changed_(now),
      bytes_(first_bytes_) {}

void WatchedSave::look(SaveInFlight save, Clock::time_point now) {
  save_ = std::move(save);
  last_ = now;
  const std::uint64_t bytes = progress_of_all(save_).bytes_written;
  if (bytes == bytes_) return;
  bytes_ = bytes;
  changed_ = now;
}

std::string WatchedSave::rate() const {
  const std::uint64_t total = progress_of_all(save_).bytes_total;
  if (bytes_ <= first_bytes_ || total <= first_bytes_) return {};
  return rate_text(bytes_ - first_bytes_, total - first_bytes_, changed_ - first_);
}

std::string WatchedSave::line(std::size_t columns) const {
  const std::string name = printable(save_.directory.filename().string());
  const bool is_in_flight = save_.is_readable && !save_.is_leftover && save_.decision == SaveInFlight::Decision::kNone;
  if (!is_in_flight) return fmt::format("{}  {}", name, story_of(save_));
  const SaveProgress progress = progress_of_all(save_);
  std::string text = name + "  in flight";
  if (progress.bytes_total > 0) {
    const std::string action = fmt::format("{} {}", name, name_of(progress.phase));
    text = bar_text(action, progress.bytes_written, progress.bytes_total, std::max(columns, kBarColumnsMin));
  }
  return text + rate() + writers_of(save_) + longest_call_of(save_);
}

}  // namespace cairn::cli
