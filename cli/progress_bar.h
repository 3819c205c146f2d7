// ProgressBar: the progress of a command, on stderr.
#pragma once

#include <cairn/progress.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace cairn::cli {

using ProgressUnit = WorkInProgress::Unit;

// "verifying [#####.....]  50%  1.0 GiB of 2.0 GiB" for the action "verifying", cut to fewer than `columns` characters.
// Without a known total (0) the bar is empty.
std::string bar_text(std::string_view action, std::uint64_t done, std::uint64_t total, std::size_t columns,
                     ProgressUnit unit = ProgressUnit::kBytes);

// "  250.0 MiB/s, 1:05 left", for what was done in the time; empty while nothing is done or the total is unknown.
std::string rate_text(std::uint64_t done, std::uint64_t total, std::chrono::duration<double> elapsed,
                      ProgressUnit unit = ProgressUnit::kBytes);

// The line of a terminal with `columns` characters, and the line of a log. Without a known total both have the time
// since the begin.
std::string line_of_terminal(const WorkInProgress& work, std::size_t columns);
std::string line_of_log(const WorkInProgress& work);

// During its life a thread shows the oldest call into the engine: on a terminal with a movable cursor in a line, which
// is redrawn, elsewhere in a new line each time. A command that ends before the first time of the Pace shows nothing.
// An EndingSignals is made after the ProgressBar.
// A process has at most one ProgressBar at a time: on a terminal, SIGINT and SIGTERM remove the line and then end the
// process, as by default. The destructor removes the line.
class ProgressBar {
 public:
  enum class Wish : std::uint8_t { kShown, kQuiet };
  struct Pace {
    std::chrono::milliseconds first_draw{2000};
    std::chrono::milliseconds draw{100};
    std::chrono::milliseconds log{10'000};
  };

  explicit ProgressBar(Wish wish) : ProgressBar(wish, Pace()) {}
  ProgressBar(Wish wish, const Pace& pace);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Writes to stdout or stderr at once. The line of a terminal comes back with the next draw.
  void print(std::string_view text, std::FILE* stream);

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  void show(const WorkInProgress& work, Clock::time_point now);

  const Pace pace_;
  const bool can_draw_;
  Clock::time_point next_;
  std::mutex output_;
  std::optional<ProgressWatch> watch_;  // nullopt: nothing is shown
  std::thread thread_;                  // last: uses the other members
};

}  // namespace cairn::cli
