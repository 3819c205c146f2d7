// Call options: the keywords of a call into the engine, as Python gives them, and how the call is made.
#pragma once

#include <cairn/checkpoint.h>
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

// Both raise TypeError for a keyword that they don't know.
SaveOptions save_options_of(const nb::kwargs& keywords);
LoadOptions load_options_of(const nb::kwargs& keywords);

// The error of a rank that has failed, as it tells the others of it: (code, message, place, record). Of `place` count
// key, file, expected, actual, offset and error_number; `record` is a cairn.exception_record.ExceptionRecord or None.
Error reason_of(const nb::tuple& reason);

nb::list strings(const std::vector<std::string>& texts);

// Runs `work` without Python's lock. What a signal handler raised meanwhile comes before the work's own outcome.
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
  return nb::cast<PythonCollectives&>(keywords["collectives"]).unwrap(std::move(result));  // they know what was raised
}

}  // namespace cairn::python
