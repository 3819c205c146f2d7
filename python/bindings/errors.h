// How a failure of the engine becomes a Python exception: one of the classes of cairn.errors, by its code.
#pragma once

#include <cairn/result.h>

#include <nanobind/nanobind.h>

#include <type_traits>
#include <utility>

namespace nb = nanobind;

namespace cairn::python {

// Has every cairn::Error that leaves a bound function raised as exception_of() it.
void register_error_translator();

nb::object exception_of(const Error& error);

// The value, or the error thrown.
template <typename T>
T unwrap(Result<T> result) {
  if (!result) throw Error(std::move(result).error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace cairn::python
