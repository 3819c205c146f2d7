// SaveChoice: the save whose data files a rebuilt metadata file names.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "repair/found_saves.h"
#include "repair/metadata_state.h"

namespace cairn::checkpointer {

struct SaveChoice {
  const SaveFiles* save = nullptr;  // in the FoundSaves; null: `problems` say why
  std::vector<Error> problems = {};
};

// The wanted save; else the save of an intact commit record; else the only save that has ended; else the only
// one of these of which all files are there. A save with a private folder has not ended, and is never chosen unasked.
struct WantedSave {
  std::optional<SaveId> id;
  std::optional<std::uint32_t> rank;  // that saved alone
};
SaveChoice choose_save(const FoundSaves& found, const MetadataState& state, const WantedSave& wanted);

// What the chosen save lacks.
struct MissingFiles {
  std::uint64_t count = 0;
  std::vector<std::string> names = {};  // as far as known
  bool is_count_known = true;           // false: nothing shows how many files the save has
};
MissingFiles missing_files_of(const SaveFiles& save, const std::optional<manifest::CommitRecord>& record);

}  // namespace cairn::checkpointer
