#include "progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <system_error>
#include <vector>

#include "ending_signals.h"
#include "printable.h"

namespace cairn::cli {
namespace {

constexpr std::string_view kRemoveLine = "\r\x1b[K";  // to the first column, then erase to the end of the line
constexpr std::size_t kColumnsDefault = 80;

std::atomic<bool> has_line{false};  // on the terminal
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler reads the flag");

// Also called by a signal handler. A failed write, to a terminal that is gone, is ignored.
void write_to_stderr(std::string_view text) { (void)!::write(STDERR_FILENO, text.data(), text.size()); }

void remove_line() {
  if (has_line.exchange(false)) write_to_stderr(kRemoveLine);
}

// SA_RESETHAND has restored the default action: the signal, raised again, ends the process.
void remove_line_and_end(int number) {
  remove_line();
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

// "1:05", "1:40:00".
std::string clock_text(std::int64_t seconds) {
  const std::string hours = seconds < 3600 ? "" : fmt::format("{}:", seconds / 3600);
  const std::string minutes =
      seconds < 3600 ? fmt::format("{}", seconds / 60) : fmt::format("{:02}", seconds / 60 % 60);
  return fmt::format("{}{}:{:02}", hours, minutes, seconds % 60);
}

std::string amount_text(std::uint64_t done, std::uint64_t total, ProgressUnit unit) {
  if (unit == ProgressUnit::kBytes) return fmt::format("{} of {}", byte_text(std::min(done, total)), byte_text(total));
  return fmt::format("{} of {} {}", std::min(done, total), total, name_of(unit));
}

// Of a work without a known total.
std::string text_without_total(const WorkInProgress& work) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(work.elapsed).count();
  std::string text = fmt::format("{}, {}", name_of(work.kind), clock_text(seconds));
  if (work.done == 0) return text;
  const bool is_bytes = work.unit == ProgressUnit::kBytes;
  return text + ", " + (is_bytes ? byte_text(work.done) : fmt::format("{} {}", work.done, name_of(work.unit)));
}

int percent_of(std::uint64_t done, std::uint64_t total) {
  return total == 0 ? 0 : static_cast<int>(std::min(static_cast<double>(done) / static_cast<double>(total), 1.0) * 100);
}

}  // namespace

std::string bar_text(std::string_view action, std::uint64_t done, std::uint64_t total, std::size_t columns,
                     ProgressUnit unit) {
  constexpr std::size_t kWidth = 30;
  const double share = total == 0 ? 0 : std::min(static_cast<double>(done) / static_cast<double>(total), 1.0);
  const auto filled = static_cast<std::size_t>(share * kWidth);
  std::string text = fmt::format("{} [{:.<{}}] {:>3}%  {}", action, std::string(filled, '#'), kWidth,
                                 percent_of(done, total), amount_text(done, total, unit));
  if (text.size() >= columns) text.resize(columns == 0 ? 0 : columns - 1);
  return text;
}

std::string rate_text(std::uint64_t done, std::uint64_t total, std::chrono::duration<double> elapsed,
                      ProgressUnit unit) {
  if (done == 0 || total == 0 || elapsed.count() <= 0) return {};
  const double rate = static_cast<double>(done) / elapsed.count();
  const std::int64_t left = std::llround(static_cast<double>(total - std::min(done, total)) / rate);
  const std::string amount = unit == ProgressUnit::kBytes ? byte_text(static_cast<std::uint64_t>(rate))
                                                          : fmt::format("{:.1f} {}", rate, name_of(unit));
  return fmt::format("  {}/s, {} left", amount, clock_text(left));
}

std::string line_of_terminal(const WorkInProgress& work, std::size_t columns) {
  if (work.total == 0) {
    std::string text = text_without_total(work);
    if (text.size() >= columns) text.resize(columns == 0 ? 0 : columns - 1);
    return text;
  }
  std::string text = bar_text(name_of(work.kind), work.done, work.total, columns, work.unit);
  const std::string rate = rate_text(work.done, work.total, work.elapsed, work.unit);
  return text.size() + rate.size() < columns ? text + rate : text;
}

std::string line_of_log(const WorkInProgress& work) {
  if (work.total == 0) return fmt::format("cairn: {}\n", text_without_total(work));
  return fmt::format("cairn: {}, {:>3}%  {}{}\n", name_of(work.kind), percent_of(work.done, work.total),
                     amount_text(work.done, work.total, work.unit),
                     rate_text(work.done, work.total, work.elapsed, work.unit));
}

ProgressBar::ProgressBar(Wish wish, const Pace& pace)
    : pace_(pace), can_draw_(can_draw_on_stderr()), next_(Clock::now() + (can_draw_ ? pace.first_draw : pace.log)) {
  if (wish == Wish::kQuiet) return;
  watch_.emplace();
  if (can_draw_) handle_ending_signals(remove_line_and_end, static_cast<int>(SA_RESETHAND | SA_NODEFER));
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {  // no thread: the command works without a bar
  }
}

ProgressBar::~ProgressBar() {
  if (!thread_.joinable()) return;
  watch_->close();
  thread_.join();
  if (!can_draw_) return;
  handle_ending_signals(SIG_DFL, 0);
  remove_line();
}

void ProgressBar::print(std::string_view text, std::FILE* stream) {
  const std::lock_guard lock(output_);
  remove_line();
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

void ProgressBar::run() {
  while (!watch_->is_closed()) {
    const std::vector<WorkInProgress> works = watch_->take(pace_.draw);
    const Clock::time_point now = Clock::now();
    if (now < next_ || watch_->is_closed()) continue;
    const auto running = std::find_if(works.begin(), works.end(), [](const WorkInProgress& work) {
      return work.state == WorkInProgress::State::kRunning;
    });
    if (running != works.end()) show(*running, now);
  }
}

void ProgressBar::show(const WorkInProgress& work, Clock::time_point now) {
  next_ = now + (can_draw_ ? pace_.draw : pace_.log);
  const std::lock_guard lock(output_);
  if (!can_draw_) return write_to_stderr(line_of_log(work));
  has_line = true;
  write_to_stderr("\r" + line_of_terminal(work, columns_of_stderr()) + "\x1b[K");
}

}  // namespace cairn::cli
