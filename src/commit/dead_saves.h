// Dead saves: removes the saves of a directory whose leases have run out, without a save of one's own.
//
// A save removes the dead saves of its own directory when it commits (leftovers.h, model_leftovers.h). A directory into
// which no job saves again keeps its dead saves until a call of remove_dead_saves().
#pragma once

#include <cairn/result.h>

#include <optional>
#include <string>
#include <vector>

#include "commit/lease.h"
#include "commit/removal_log.h"
#include "storage/storage.h"

namespace cairn::commit {

struct RemovedSave {
  SaveId save_id;
  std::vector<RemovedFile> files;  // of the save, or replaced by the save if it has committed
};

struct RemovedSaves {
  std::vector<RemovedSave> saves;
  // Saves that were left, since only a different user may enter their folders: a lease there is not trusted.
  std::vector<SaveId> of_other_users;
  std::vector<std::string> problems;  // why a dead save, or a file of it, was left
};

// Removes the folders and the files of dead saves of checkpoints and of models, as a later save would: a committed save
// is completed, an uncommitted save is undone. Keeps files that a metadata file or an index names, files of living
// saves, and foreign files. Takes the directory's lock, unless no save of the directory is dead. With kTry changes
// nothing, and reports the files that a call with kDo would remove, by the clock of this host.
Result<RemovedSaves> remove_dead_saves(storage::Storage& storage, Removal removal);

// Whether a save into the directory, other than `except`, is under way, by the clock of this host. An error if no save
// is known to be alive, and a lease can't be read.
Result<bool> has_living_save(const storage::Storage& storage, const std::optional<SaveId>& except = std::nullopt);

}  // namespace cairn::commit
