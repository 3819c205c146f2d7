// DirectoryInPlace: a directory in the form of torch_checkpointing at a moment: enough to recognise a change, and to
// remove its files and nothing else.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "commit/metadata_in_place.h"
#include "storage/storage.h"

namespace cairn::commit {

struct DirectoryInPlace {
  std::unique_ptr<storage::Storage> storage;  // of look_at_directory(); null if there is no directory
  MetadataInPlace record;                     // of `.cairn-record`
  std::vector<std::string> files;             // all regular files but the lock file, sorted
  std::vector<std::string> private_folders;   // of Cairn's saves

  bool is_empty() const { return files.empty() && private_folders.empty(); }
  bool same_as(const DirectoryInPlace& other) const {
    return (storage == nullptr) == (other.storage == nullptr) && record.same_as(other.record) && files == other.files;
  }
};

// Looks at the folder `name` of `parent`. Fails if the folder holds a file that is not of its checkpoint, which a
// removal would lose: kInvalidArgument; kUnavailable for a pinned checkpoint. Of a directory with a record, the
// recorded files are the checkpoint's; else the names must be those of torch_checkpointing's default layout.
// kInvalidArgument if the name is that of a file or a link.
Result<DirectoryInPlace> look_at_directory(const storage::Storage& parent, const std::string& name);
// As look_at_directory(), of an opened directory, which errors call `name`. kSome: the files of some ranks may be
// missing, as after a removal or a withdrawal that was killed.
enum class RanksInPlace : std::uint8_t { kAll, kSome };
Result<DirectoryInPlace> look_into_directory(const storage::Storage& directory, const std::string& name,
                                             RanksInPlace ranks);

// Removes the files and private folders that `old` names from `directory`, and then the folder, which has the name
// `name` in `parent` now. Files that came later stay, with the folder. Adds a warning for each file that could not be
// removed, and for files that stay.
void remove_old_directory(storage::Storage& parent, const std::string& name, storage::Storage& directory,
                          const DirectoryInPlace& old, std::vector<std::string>& warnings);

}  // namespace cairn::commit
