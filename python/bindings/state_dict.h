// The error for a taken name, shared by the bindings that fill a StateDict.
#pragma once

#include <cairn/state_dict.h>

namespace cairn::python {

// Throws the error of `added`, if any. For a taken name the error has DCP's words.
void expect_added(const StateDict& state, Result<void> added);

}  // namespace cairn::python
