// listed_keys: keys for a warning: "'a', 'b' and 3 more".
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace cairn::checkpointer {

inline constexpr std::size_t kListedKeysMax = 8;  // more keys are only counted

std::string listed_keys(const std::vector<std::string>& keys);
// Of `count` keys, of which only the first are named.
std::string listed_keys(std::span<const std::string> named, std::size_t count);

}  // namespace cairn::checkpointer
