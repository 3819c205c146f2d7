#include "live_lines.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace cairn::cli {
namespace {

constexpr std::chrono::seconds kLogInterval{10};
constexpr std::size_t kColumnsOfALog = 100;
constexpr std::string_view kEraseToTheRight = "\x1b[K\n";
constexpr std::string_view kEraseBelow = "\x1b[J";

bool can_redraw_stdout() {
  const char* const terminal = std::getenv("TERM");  // NOLINT(concurrency-mt-unsafe): no thread writes the environment
  return ::isatty(STDOUT_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

// At most `size` bytes, not cut within a character of UTF-8.
std::string_view beginning_of(std::string_view text, std::size_t size) {
  if (text.size() <= size) return text;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0U) == 0x80U) --size;
  return text.substr(0, size);
}

}  // namespace

void print_at_once(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

LiveLines::LiveLines(std::string if_empty) : if_empty_(std::move(if_empty)), can_redraw_(can_redraw_stdout()) {}

std::size_t LiveLines::columns() const {
  winsize size{};
  const bool is_known = can_redraw_ && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return is_known ? size.ws_col : kColumnsOfALog;
}

void LiveLines::show(const std::vector<std::string>& lasting, const std::map<std::string, std::string>& lines) {
  std::string text;
  if (drawn_ > 0) text += fmt::format("\x1b[{}A", drawn_);  // up
  for (const std::string& line : lasting) text += line + (can_redraw_ ? std::string(kEraseToTheRight) : "\n");
  print_at_once(text + (can_redraw_ ? redrawn(lines) : logged(lines)));
}

std::string LiveLines::redrawn(const std::map<std::string, std::string>& lines) {
  std::string text;
  // A line that wraps would take two rows, and the cursor would go up too little.
  const std::size_t width = columns() - 1;
  for (const auto& [key, line] : lines) text.append(beginning_of(line, width)).append(kEraseToTheRight);
  if (lines.empty()) text.append(beginning_of(if_empty_, width)).append(kEraseToTheRight);
  drawn_ = std::max<std::size_t>(lines.size(), 1);
  return text.append(kEraseBelow);
}

std::string LiveLines::logged(const std::map<std::string, std::string>& lines) {
  const Clock::time_point now = Clock::now();
  std::string text;
  std::map<std::string, Clock::time_point> printed;
  for (const auto& [key, line] : lines) {
    const auto before = printed_.find(key);
    const bool is_due = before == printed_.end() || now - before->second >= kLogInterval;
    if (is_due) text += line + "\n";
    printed.emplace(key, is_due ? now : before->second);
  }
  printed_ = std::move(printed);
  return text;
}

}  // namespace cairn::cli
