// The result of a function of Python's C API that returns a new reference.
#pragma once

#include <nanobind/nanobind.h>

namespace cairn::python {

// Owns `fresh`. Raises the pending exception if `fresh` is null.
inline nanobind::object checked(PyObject* fresh) {
  if (fresh == nullptr) throw nanobind::python_error();
  return nanobind::steal(fresh);
}

}  // namespace cairn::python
