// key_pattern: globs for the keys of a checkpoint.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace cairn {

// Whether `pattern` matches the whole key, or the key up to a dot: the pattern "model.layers.0" matches every key below
// model.layers.0. `*` is any run of characters, dots included; `?` is a UTF-8 character, or a byte that is not UTF-8;
// `[abc]`, `[a-z]` and `[!a-z]` are a character of a set; `\` quotes the next character. A `[` without `]` is a
// literal. Time is bounded by the product of both lengths.
bool matches_key(std::string_view pattern, std::string_view key);

// Whether one of the patterns matches the key. A selection without patterns selects every key.
bool selects_key(std::span<const std::string> patterns, std::string_view key);

}  // namespace cairn
