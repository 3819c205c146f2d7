// Interrupt: lets Ctrl-C stop native work: asks Python for pending signals, and keeps what a handler raised.
#pragma once

#include <cairn/result.h>
#include <nanobind/nanobind.h>

#include <chrono>
#include <functional>
#include <optional>

namespace nb = nanobind;

namespace cairn::python {

// One per call into the engine, made and destroyed with Python's lock held.
class Interrupt {
 public:
  // For SaveOptions::interrupted: takes the lock for a moment. Signal handlers run on Python's main thread only;
  // elsewhere the answer is always false.
  std::function<bool()> poll();
  // As poll(), for a save, and throws what a signal handler raises after that: the save is then given up at once. A
  // second KeyboardInterrupt within a second of the first counts as the first: torchrun passes on the Ctrl-C that the
  // ranks have had from the terminal already.
  std::function<bool()> poll_again();

  // Raises what a signal handler raised while the engine worked (usually KeyboardInterrupt), if one did. The outcome
  // of that work, if it is a failure, is added as a note; before Python 3.11 it is a line on the log `cairn`.
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
