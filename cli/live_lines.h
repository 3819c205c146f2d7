// LiveLines: a line for each of several things, shown again and again on stdout.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace cairn::cli {

// On a terminal with a movable cursor the lines are redrawn in place; elsewhere each has a new line every ten seconds.
class LiveLines {
 public:
  // `if_empty` is the line of a terminal without lines.
  explicit LiveLines(std::string if_empty);

  std::size_t columns() const;
  // `lasting`: lines that stay. `lines`: by the key of the thing.
  void show(const std::vector<std::string>& lasting, const std::map<std::string, std::string>& lines);

 private:
  using Clock = std::chrono::steady_clock;
  std::string redrawn(const std::map<std::string, std::string>& lines);
  std::string logged(const std::map<std::string, std::string>& lines);

  const std::string if_empty_;
  const bool can_redraw_;
  std::size_t drawn_ = 0;                             // lines on the terminal
  std::map<std::string, Clock::time_point> printed_;  // when a log has had the line of a key
};

// Writes to stdout at once.
void print_at_once(const std::string& text);

}  // namespace cairn::cli
