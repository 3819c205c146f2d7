// listed_keys: keys for a warning: "'a', 'b' and 3 more".
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cairn::checkpointer {

inline constexpr std::size_t kListedKeysMax = 8;  // further keys are only counted

std::string listed_keys(const std::vector<std::string>& keys);

}  // namespace cairn::checkpointer
