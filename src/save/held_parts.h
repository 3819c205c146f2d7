// held_parts: the tensors of which a state holds only a part.
#pragma once

#include <cairn/state_dict.h>

#include <optional>
#include <string>

namespace cairn::checkpointer {

// The warning of a save by a process alone, whose checkpoint will hold the chunks of `state` and no others. Nullopt if
// the chunks of each tensor cover the tensor.
std::optional<std::string> warning_of_parts(const StateDict& state);

}  // namespace cairn::checkpointer
