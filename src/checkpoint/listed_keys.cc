#include "checkpoint/listed_keys.h"

#include <algorithm>

namespace cairn::checkpointer {

std::string listed_keys(const std::vector<std::string>& keys) {
  return listed_keys(std::span(keys).first(std::min(keys.size(), kListedKeysMax)), keys.size());
}

std::string listed_keys(std::span<const std::string> named, std::size_t count) {
  std::string text;
  for (const std::string& key : named) text += (text.empty() ? "'" : ", '") + key + "'";
  if (count > named.size()) text += " and " + std::to_string(count - named.size()) + " more";
  return text;
}

}  // namespace cairn::checkpointer
