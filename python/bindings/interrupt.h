// Interrupt: lets Ctrl-C stop native work. Runs pending signal handlers of Python, and keeps a handler's exception.
#pragma once

#include <cairn/result.h>
#include <nanobind/nanobind.h>

#include <chrono>
#include <functional>
#include <optional>

namespace nb = nanobind;

namespace cairn::python {

// One object per call into the engine, made and destroyed with Python's lock held.
class Interrupt {
 public:
  // For SaveOptions::interrupted: takes the lock for a moment. Signal handlers run on Python's main thread only; on
  // other threads the answer is always false.
  std::function<bool()> poll();
  // As poll(), for a save. After a first exception, a second exception of a signal handler is thrown, and the save is
  // given up at once. A second KeyboardInterrupt within a second of the first counts as the first: torchrun sends the
  // ranks a signal for the Ctrl-C that the terminal has already sent to the ranks.
  std::function<bool()> poll_again();

  // Raises the exception of a signal handler during the engine's work (usually KeyboardInterrupt), if a handler raised
  // an exception. The error of the work becomes a note of the exception; before Python 3.11 a line on the log `cairn`.
  void rethrow();
  template <typename T>
  void rethrow(const Result<T>& outcome) {
    if (!outcome) note(outcome.error());
    rethrow();
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool has_raised_again() const;
  void note(const Error& error);

  std::optional<nb::python_error> raised_;
  Clock::time_point raised_at_;
};

}  // namespace cairn::python
