#include "checkpointer/listed_keys.h"

#include <algorithm>

namespace cairn::checkpointer {

std::string listed_keys(const std::vector<std::string>& keys) {
  std::string text;
  for (std::size_t i = 0; i < std::min(keys.size(), kListedKeysMax); ++i) {
    text += (text.empty() ? "'" : ", '") + keys[i] + "'";
  }
  if (keys.size() > kListedKeysMax) text += " and " + std::to_string(keys.size() - kListedKeysMax) + " more";
  return text;
}

}  // namespace cairn::checkpointer
