// What a load returns to Python, and the exception about missing keys.
#pragma once

#include <cairn/checkpoint.h>
#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace cairn::python {

// [(fqn, saved dtype code, target dtype code), ...]
nb::list conversions_of(const LoadReport& report);

// Raises `error`; the exception of kMissingKey gets the keys of `state` that the checkpoint lacks.
[[noreturn]] void rethrow_with_keys(const Error& error, const Checkpoint& checkpoint, const StateDict& state,
                                    const LoadOptions& options);

}  // namespace cairn::python
