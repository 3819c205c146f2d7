// The text of a place in a nested state. Equal texts mean equal places.
#pragma once

#include <cairn/state_dict.h>

#include <string>

namespace cairn {

// Adds a step to the text of a place.
void append_step(std::string& place, const PathElement& step);
std::string place_text(const Path& place);

}  // namespace cairn
