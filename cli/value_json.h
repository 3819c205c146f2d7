// A value of a checkpoint as JSON.
#pragma once

#include <cairn/state_dict.h>

#include <string>

#include "json_writer.h"

namespace cairn::cli {

// Python's name of the value's type: "dict", "numpy.ndarray"; of an object the name of the class or function.
std::string type_name(const Value& value);

// Writes None, bool, int, finite float, str, list, tuple, and dicts with text keys as JSON. All other values become
// {"type": type_name(), "text": what Python prints}: NaN and infinities, integers beyond 64 bits, complex, bytes, sets,
// arrays, objects, and dicts with a key that is no text.
void write_value(JsonWriter& json, const Value& value);

}  // namespace cairn::cli
