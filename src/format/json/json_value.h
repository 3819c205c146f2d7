// read_json_value: any JSON text as a Value, as Python's json.loads() reads it.
//
// Pure. Integers of any size; NaN and Infinity, which Python writes. Of a name that an object has twice, the last value
// counts, at the place of the first. Time and memory are proportional to the text. Errors as of JsonReader.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <string_view>

namespace cairn::json {

Result<Value> read_json_value(std::string_view text);

}  // namespace cairn::json
