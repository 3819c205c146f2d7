// DeadSave: a save whose writer process died: what this process can still do for it.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <optional>
#include <string>

#include "format/manifest/commit_record.h"
#include "storage/storage.h"

namespace cairn::writer {

struct DeadSave {
  std::string directory;
  SaveId save_id;
  std::string metadata_name;                        // what it was to commit
  std::optional<std::uint32_t> follower_rank = {};  // the rank; none: the coordinator
};

// The process is dead, for `reason`. For the coordinator's save: syncs the directory, and then removes what the save
// left or replaced if no other rank is at work there; if the sync fails, the files of both checkpoints stay. For
// another rank's save: tells its failure to the other ranks. Returns the reason, and whether the save's checkpoint is
// in place.
Error clean_up_dead_save(const DeadSave& save, Error reason);
// The same in the save's directory, which is open already.
Error clean_up_dead_save_in(storage::Storage& storage, const DeadSave& save, Error reason);

}  // namespace cairn::writer
