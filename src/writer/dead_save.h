// DeadSave: a save whose writer process died: what this process can still do for it.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <optional>
#include <string>

#include "format/manifest/commit_record.h"

namespace cairn::writer {

struct DeadSave {
  std::string directory;
  SaveId save_id;
  std::string metadata_name;                     // what it was to commit
  std::optional<std::uint32_t> follows_as = {};  // the rank; none: the coordinator
};

// The process is dead, for `reason`. Of the coordinator's save, what lies about is removed if no other rank is at work
// there; of another rank's, its failure is told to the others. Returns the reason, and whether the save's checkpoint is
// in place all the same.
Error settle(const DeadSave& save, Error reason);

}  // namespace cairn::writer
