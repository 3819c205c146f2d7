// key_text: the text that Python's str() makes of a key of a dict: DCP's flat names hold this text.
//
// Pure. Exact for None, booleans, integers, floats, text, bytes, and for tuples of these.
#pragma once

#include <cairn/state_dict.h>

#include <optional>
#include <string>
#include <string_view>

#include "format/pickle/graph.h"

namespace cairn::torch_file {

// Nullopt for all other values; for an integer of more than 4,300 digits, which str() refuses; and for a tuple with
// text outside of the alphabets whose letters are all printable: repr() escapes the rest by Unicode's tables.
std::optional<std::string> key_text(const Value& key);

// Python's name of the type of a key that has a text: "int". "key" for all other nodes and values.
std::string_view key_type(const pickle::Graph& graph, pickle::Node key);
std::string_view key_type(const Value& key);

}  // namespace cairn::torch_file
