// Interrupt: lets Ctrl-C stop native work: asks Python for pending signals, and keeps what a handler raised.
#pragma once

#include <nanobind/nanobind.h>

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

  // Raises what a signal handler raised while the engine worked (usually KeyboardInterrupt), if one did.
  void rethrow();

 private:
  std::optional<nb::python_error> raised_;
};

}  // namespace cairn::python
