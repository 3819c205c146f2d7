// DeadSave: a save after the death of the writer process, and the cleaning left to this process.
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
  std::string metadata_name;                        // the name under which the save was to commit
  std::optional<std::uint32_t> follower_rank = {};  // the rank; nullopt: the coordinator
};

// Called when the writer process has died for `reason`. For a coordinator's save: syncs the directory, and then removes
// the save's leftovers and the replaced files, unless another rank still works in the save's folder. If the sync fails,
// the files of both checkpoints stay. For another rank's save: reports the failure to the other ranks. Returns
// `reason`, and whether the save's checkpoint is in place.
Error clean_up_dead_save(const DeadSave& save, Error reason);
// Like clean_up_dead_save(), in the save's directory, which is already open.
Error clean_up_dead_save_in(storage::Storage& storage, const DeadSave& save, Error reason);

}  // namespace cairn::writer
