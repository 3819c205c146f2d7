// append_json_string: a text as a JSON string.
#pragma once

#include <cairn/result.h>

#include <string>
#include <string_view>

namespace cairn::json {

// Appends `text` in quotes, with control characters, quotes and backslashes escaped. kInvalidArgument if `text` is not
// UTF-8; `out` then holds a part of it.
Result<void> append_json_string(std::string& out, std::string_view text);

}  // namespace cairn::json
