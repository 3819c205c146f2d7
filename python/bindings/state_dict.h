// The dtype of a code, and the error for a taken name, shared by the bindings that describe tensors.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>
#include <cairn/tensor.h>

#include <string>

namespace cairn::python {

// Throws kInvalidArgument for an unknown code.
DType dtype_of(int code);

// The error for a taken name, in DCP's words.
Error duplicated_key(const std::string& fqn);

// Throws the error of `added`, if any. For a taken name the error has DCP's words.
void expect_added(const StateDict& state, Result<void> added);

}  // namespace cairn::python
