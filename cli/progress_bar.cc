#include "progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <string_view>

#include "ending_signals.h"
#include "printable.h"

namespace cairn::cli {
namespace {

constexpr std::string_view kRemoveLine = "\r\x1b[K";  // to the first column, then erase to the end of the line
constexpr std::chrono::milliseconds kInterval{100};
constexpr std::size_t kColumnsDefault = 80;

// Also called by a signal handler. A failed write, to a terminal that is gone, is ignored.
void write_to_terminal(std::string_view text) { (void)!::write(STDERR_FILENO, text.data(), text.size()); }

// SA_RESETHAND has restored the default action: the signal, raised again, ends the process.
void remove_line_and_end(int number) {
  write_to_terminal(kRemoveLine);
  (void)std::raise(number);
}

bool can_draw_on_stderr() {
  const char* const terminal = std::getenv("TERM");  // NOLINT(concurrency-mt-unsafe): no thread writes the environment
  return ::isatty(STDERR_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

std::size_t columns_of_stderr() {
  winsize size{};
  const bool is_known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
  return is_known ? size.ws_col : kColumnsDefault;
}

}  // namespace

std::string bar_text(std::string_view action, std::uint64_t done, std::uint64_t total, std::size_t columns) {
  constexpr std::size_t kWidth = 30;
  const double share = total == 0 ? 0 : std::min(static_cast<double>(done) / static_cast<double>(total), 1.0);
  const auto filled = static_cast<std::size_t>(share * kWidth);
  std::string text = fmt::format("{} [{:.<{}}] {:>3}%  {} of {}", action, std::string(filled, '#'), kWidth,
                                 static_cast<int>(share * 100), byte_text(std::min(done, total)), byte_text(total));
  if (text.size() >= columns) text.resize(columns == 0 ? 0 : columns - 1);
  return text;
}

std::string rate_text(std::uint64_t done, std::uint64_t total, std::chrono::duration<double> elapsed) {
  if (done == 0 || total == 0 || elapsed.count() <= 0) return {};
  const double rate = static_cast<double>(done) / elapsed.count();
  const std::int64_t left = std::llround(static_cast<double>(total - std::min(done, total)) / rate);
  const std::string hours = left < 3600 ? "" : fmt::format("{}:", left / 3600);
  const std::string minutes = left < 3600 ? fmt::format("{}", left / 60) : fmt::format("{:02}", left / 60 % 60);
  return fmt::format("  {}/s, {}{}:{:02} left", byte_text(static_cast<std::uint64_t>(rate)), hours, minutes, left % 60);
}

ProgressBar::ProgressBar(std::string_view action, Rate rate)
    : action_(action), shows_rate_(rate == Rate::kShown), can_draw_(can_draw_on_stderr()) {
  if (!can_draw_) return;
  handle_ending_signals(remove_line_and_end, static_cast<int>(SA_RESETHAND | SA_NODEFER));
}

ProgressBar::~ProgressBar() {
  if (!can_draw_) return;
  handle_ending_signals(SIG_DFL, 0);
  write_to_terminal(kRemoveLine);
}

void ProgressBar::show(std::uint64_t done, std::uint64_t total) {
  const Clock::time_point now = Clock::now();
  if (!can_draw_ || now < next_) return;
  next_ = now + kInterval;
  const std::size_t columns = columns_of_stderr();
  std::string text = bar_text(action_, done, total, columns);
  const std::string rate = shows_rate_ ? rate_text(done, total, now - start_) : std::string();
  if (text.size() + rate.size() < columns) text += rate;
  write_to_terminal("\r" + text + "\x1b[K");
}

}  // namespace cairn::cli
