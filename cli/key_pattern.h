// key_pattern: globs for the keys of a checkpoint.
#pragma once

#include <string_view>

namespace cairn::cli {

// Whether `pattern` matches the whole key, or the key's beginning up to a dot: the pattern "model.layers.0" takes every
// key below it. `*` is any run of bytes, dots included; `?` is one character of UTF-8, or one byte that is no UTF-8;
// `[abc]`, `[a-z]` and `[!a-z]` are one byte of a set; `\` takes the next byte as it is. A `[` without `]` is itself.
// Time is bounded by the product of both lengths.
bool matches_key(std::string_view pattern, std::string_view key);

}  // namespace cairn::cli
