// New directory: the directory in which a save of a whole directory writes its files, beside the directory that the
// files are for: `.cairn-new-<save id>-<name>`. The commit gives the new directory the name (directory_commit.h).
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "commit/dead_saves.h"
#include "storage/storage.h"

namespace cairn::commit {

inline constexpr std::string_view kNewDirectoryPrefix = ".cairn-new-";

struct NewDirectory {
  SaveId save_id;
  std::string name;  // that the commit gives
};
std::string name_of_new_directory(const NewDirectory& directory);
// The inverse; nullopt if `name` is not the name of a new directory.
std::optional<NewDirectory> new_directory_of_name(std::string_view name);

// The commit record of a save, as a file in the directory: the save, its job, and the names and sizes of its files
// (format/manifest/commit_record.h, behind an empty pickle).
inline constexpr std::string_view kDirectoryRecordName = ".cairn-record";
// In the private folder until the commit.
inline constexpr std::string_view kSealedDirectoryRecordName = "record";

// Whether the directory `name` beside the directory of `storage` is that of the save. Asks the file server.
Result<bool> is_directory_in_place(const storage::Storage& storage, const NewDirectory& directory);

// Removes the regular files of the folder `name` of `parent`, Cairn's private folders in it, and the folder. Adds a
// warning for each file and folder that could not be removed.
void remove_whole_directory(storage::Storage& parent, const std::string& name, std::vector<std::string>& warnings);

// The new directories in `parent`, of living saves and of dead saves, by name.
Result<std::vector<NewDirectory>> new_directories_in(const storage::Storage& parent);

// Removes the new directory in `parent` if its save is dead: either the leases have run out, or the save has committed
// and the new directory holds the replaced files. Under the lock of the new directory, which a committing save holds
// too; a directory whose lock another process holds stays. `parent` is synced before: a save may have died between its
// commit and its sync, and a power cut could bring the old directory back. The result has at most one save, whose files
// are named relative to the new directory. With kTry changes nothing.
RemovedSaves remove_if_dead(storage::Storage& parent, const NewDirectory& directory, Removal removal);

// Removes the dead new directories in `parent`, except for that of `mine`. Adds a warning for each file and folder that
// could not be removed.
void remove_dead_directories(storage::Storage& parent, const SaveId& mine, std::vector<std::string>& warnings);

// For a save whose coordinator's process has died: syncs the directory above, `parent`, and removes the files, the new
// directory and the private folder that the save has left, unless a rank still works in the private folder. Returns
// whether the directory in place is the save's. If the sync fails, returns its error and removes nothing.
Result<bool> clean_up_after_directory(storage::Storage& parent, const NewDirectory& directory);

}  // namespace cairn::commit
