#include "checkpoint/stored_names.h"

#include <cstddef>
#include <functional>

#include "core/key_renames.h"

namespace cairn {

Result<std::vector<std::pair<std::string, std::string>>> Checkpoint::renamed_keys(
    std::span<const KeyRename> renames) const {
  CAIRN_TRY_ASSIGN(KeyRenames rules, KeyRenames::make(renames));
  std::vector<std::pair<std::string, std::string>> names;
  std::unordered_map<std::string, std::size_t, SeededHash, std::equal_to<>> places;  // of new names in `names`
  names.reserve(key_count());
  KeyStream keys(*this);
  while (true) {
    std::span<const KeySummary> batch;
    CAIRN_TRY_ASSIGN(batch, keys.next());
    if (batch.empty()) break;
    for (const KeySummary& key : batch) {
      CAIRN_TRY_ASSIGN(KeyName renamed, rules.apply({key.fqn, {key.fqn}}));
      const auto [place, is_new] = places.try_emplace(renamed.fqn, names.size());
      if (!is_new) {
        return Error(ErrorCode::kInvalidArgument, "two keys of the checkpoint get the same name")
            .key(renamed.fqn)
            .actual("'" + names[place->second].second + "' and '" + key.fqn + "'");
      }
      names.emplace_back(std::move(renamed.fqn), key.fqn);
    }
  }
  if (const KeyRename* unused = rules.first_unused()) {
    return Error(ErrorCode::kMissingKey, "a rename applies to no key").actual(unused->from + "=" + unused->to);
  }
  return names;
}

namespace checkpointer {

Result<StoredNames> StoredNames::of(const Checkpoint& checkpoint, std::span<const KeyRename> renames) {
  StoredNames names;
  if (renames.empty()) return names;
  names.renames_ = true;
  CAIRN_TRY_ASSIGN(auto keys, checkpoint.renamed_keys(renames));
  for (auto& [name, key] : keys) names.stored_.emplace(std::move(name), std::move(key));
  return names;
}

const std::string* StoredNames::find(const std::string& name) const {
  if (!renames_) return &name;
  const auto found = stored_.find(name);
  return found == stored_.end() ? nullptr : &found->second;
}

}  // namespace checkpointer
}  // namespace cairn
