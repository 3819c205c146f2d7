// Call options: the Python keywords of a call into the engine, and the call without Python's lock.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/save.h>
#include <nanobind/nanobind.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "collectives.h"
#include "errors.h"
#include "interrupt.h"

namespace nb = nanobind;

namespace cairn::python {

// Both raise TypeError for an unknown keyword.
SaveOptions save_options_of(const nb::kwargs& keywords);
LoadOptions load_options_of(const nb::kwargs& keywords);

// From an iterable of pairs (old name, new name).
std::vector<KeyRename> renames_of(nb::handle pairs);

// From (progress, sync, publish), in seconds.
SaveDeadlines deadlines_of(nb::handle seconds);

// The error of a failed rank, for a message to the remaining ranks. `reason` is (code, message, place, record). Of
// `place`, reason_of() uses key, file, expected, actual, offset and error_number; `record` is a
// cairn._ranks.exception_record.ExceptionRecord or None.
Error reason_of(const nb::tuple& reason);

nb::list strings(const std::vector<std::string>& texts);

// Runs `work` without Python's lock. An exception from a signal handler takes precedence over the result of `work`.
template <typename Options, typename Work>
auto without_lock(Options& options, const nb::kwargs& keywords, Work&& work) {
  Interrupt interrupt;
  options.interrupted = std::is_same_v<Options, SaveOptions> ? interrupt.poll_again() : interrupt.poll();
  auto result = [&] {
    const nb::gil_scoped_release released;
    return work();
  }();
  interrupt.rethrow(result);
  if (options.collectives == nullptr) return unwrap(std::move(result));
  return nb::cast<PythonCollectives&>(keywords["collectives"])
      .unwrap(std::move(result));  // raises with the exception of the failed call as cause
}

// As above, of a call without collectives. The error of `work` is no note of the exception of a signal handler.
template <typename Options, typename Work>
auto without_lock(Options& options, Work&& work) {
  Interrupt interrupt;
  options.interrupted = interrupt.poll();
  auto result = [&] {
    const nb::gil_scoped_release released;
    return work();
  }();
  interrupt.rethrow();
  return unwrap(std::move(result));
}

}  // namespace cairn::python
