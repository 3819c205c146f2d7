// StoredNames: the keys of a checkpoint by the names that a load gives them (LoadOptions::renames).
#pragma once

#include <cairn/catalog.h>
#include <cairn/checkpoint.h>
#include <cairn/result.h>

#include <functional>
#include <span>
#include <string>
#include <unordered_map>

#include "core/seeded_hash.h"

namespace cairn::checkpointer {

// Immutable.
class StoredNames {
 public:
  // Without renames every name is a key's own name, and no key is read. Errors as of Checkpoint::renamed_keys().
  static Result<StoredNames> of(const Checkpoint& checkpoint, std::span<const KeyRename> renames);

  // The key with this name after the renames; null if no key has the name. Valid as long as this object and `name`.
  const std::string* find(const std::string& name) const;

 private:
  bool renames_ = false;
  std::unordered_map<std::string, std::string, SeededHash, std::equal_to<>> stored_;  // by new name
};

}  // namespace cairn::checkpointer
