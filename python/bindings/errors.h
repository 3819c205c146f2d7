// Errors of the engine as Python exceptions: each error code has a class in cairn.errors.
#pragma once

#include <cairn/result.h>

#include <nanobind/nanobind.h>

#include <type_traits>
#include <utility>

namespace nb = nanobind;

namespace cairn::python {

// Makes nanobind raise every cairn::Error from a bound function as exception_of() the error.
void register_error_translator();

nb::object exception_of(const Error& error);

// Returns the value, or throws the error.
template <typename T>
T unwrap(Result<T> result) {
  if (!result) throw Error(std::move(result).error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace cairn::python
