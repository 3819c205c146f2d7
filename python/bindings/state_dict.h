// The dtype of a code, and the error for a taken name, shared by the bindings that describe tensors.
#pragma once

#include <cairn/dtype.h>
#include <cairn/state_dict.h>

namespace cairn::python {

// Throws kInvalidArgument for an unknown code.
DType dtype_of(int code);

// Throws the error of `added`, if any. For a taken name the error has DCP's words.
void expect_added(const StateDict& state, Result<void> added);

}  // namespace cairn::python
