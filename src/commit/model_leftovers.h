// Model leftovers: the files of a replaced safetensors model, and the files of dead saves of models.
//
// Removes only regular `*.safetensors` files of the directory itself: files that an index names, files with the name of
// a model's file, and files of a save that Cairn can identify. Foreign files stay.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "commit/lease.h"
#include "format/safetensors/index.h"
#include "storage/storage.h"

namespace cairn::commit {

// The identity of `model.safetensors.index.json` at a moment: enough to recognise a change.
struct IndexInPlace {
  bool present = false;
  std::uint64_t size = 0;
  std::uint32_t checksum = 0;
  bool readable = false;  // `index` is what the file says
  safetensors::Index index;

  bool same_as(const IndexInPlace& other) const {
    return present == other.present && size == other.size && checksum == other.checksum;
  }
};
// An index that is damaged is present and not readable.
Result<IndexInPlace> read_index_in_place(const storage::Storage& storage);

// The file in a save's folder that says that a save of shards, which has no index, is committed.
inline constexpr std::string_view kCommittedName = "/committed";

// The files that the save `mine` replaces: files that `old` names, and files with the name of a model's file, except
// `kept` and the files of saves in flight. `model.safetensors` comes first.
std::vector<std::string> replaced_model_files(const storage::Storage& storage, const IndexInPlace& old,
                                              const std::vector<std::string>& kept, const SaveId& mine);

// Removes `names`, in this order. Adds a warning for each file that could not be removed.
void remove_model_files(storage::Storage& storage, const std::vector<std::string>& names,
                        std::vector<std::string>& warnings);

// Removes the folders and files of dead saves of models. A committed save's list of replaced files is carried out; the
// published files of an uncommitted save are removed. Call under the directory's lock. `mine` is not dead.
Result<void> remove_dead_model_saves(storage::Storage& storage, const SaveId& mine, std::vector<std::string>& warnings);

}  // namespace cairn::commit
