// ProgressBar: a command's progress in a line of the terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::cli {

// "verifying [#####.....]  50%  1.0 GiB of 2.0 GiB" for the action "verifying", cut to fewer than `columns` characters.
// Without a known total (0) the bar is empty.
std::string bar_text(std::string_view action, std::uint64_t done, std::uint64_t total, std::size_t columns);

// "  250.0 MiB/s, 1:05 left", for the bytes done in the time; empty while nothing is done or the total is unknown.
std::string rate_text(std::uint64_t done, std::uint64_t total, std::chrono::duration<double> elapsed);

// Draws on stderr if stderr is a terminal with a movable cursor, and otherwise does nothing. A process has at most one
// ProgressBar at a time: during its life, SIGINT and SIGTERM remove the line from the terminal and then end the
// process, as by default. The destructor removes the line.
class ProgressBar {
 public:
  enum class Rate : std::uint8_t { kHidden, kShown };  // and the remaining time
  explicit ProgressBar(std::string_view action, Rate rate = Rate::kHidden);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Draws at most ten times a second.
  void show(std::uint64_t done, std::uint64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  std::string action_;
  bool shows_rate_ = false;
  bool can_draw_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_ = Clock::time_point::min();
};

}  // namespace cairn::cli
