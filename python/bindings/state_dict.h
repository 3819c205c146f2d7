// What the bindings that fill a StateDict share.
#pragma once

#include <cairn/state_dict.h>

namespace cairn::python {

// Throws the error if nothing was added; that a name is taken, in DCP's words.
void expect_added(const StateDict& state, Result<void> added);

}  // namespace cairn::python
