#include "staging/torn_items.h"

#include <string>
#include <string_view>

namespace cairn::staging {
namespace {

constexpr std::size_t kKeysNamedMax = 32;  // in an error

}  // namespace

Result<void> TornItems::expect_none(std::span<const CopyItem> items) const {
  if (indices_.empty()) return {};
  std::set<std::string_view> keys;  // chunks of one tensor have one key
  for (const std::size_t index : indices_) keys.insert(items[index].key);
  std::string list;
  std::size_t named = 0;
  for (const std::string_view key : keys) {
    if (named++ == kKeysNamedMax) break;
    list.append(list.empty() ? "'" : ", '").append(key).append("'");
  }
  if (keys.size() > kKeysNamedMax) list += " and " + std::to_string(keys.size() - kKeysNamedMax) + " more";
  return Error(ErrorCode::kInvalidArgument,
               "tensors were written to while they were being staged, so this save would mix two states: " + list +
                   "; wait for the end of staging before the next optimizer step")
      .key(*keys.begin());
}

}  // namespace cairn::staging
