// The removal of a committed checkpoint of a DCP directory. The steps are at the top of checkpoint_removal.cc.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "commit/metadata_in_place.h"
#include "commit/removal_log.h"
#include "storage/storage.h"

namespace cairn::commit {

// The name of the metadata of a checkpoint that is being removed.
inline constexpr std::string_view kRemovedName = ".cairn-removed";

struct CheckpointRemoval {
  std::optional<SaveId> save_id;      // nullopt for a checkpoint of stock torch
  std::vector<RemovedFile> files;     // with the metadata; with kTry those that a call with kDo would remove
  std::vector<std::string> warnings;  // files that could not be removed
  bool leaves_files = false;          // with kTry: whether the directory would hold other files afterwards
};

// Removes the checkpoint in `.metadata` if it is still the `chosen` one. Errors, all before any change except those of
// the storage: kReplaced if another checkpoint is in place, kNotFound without any, kInvalidArgument if the checkpoint
// is pinned, kUnavailable if a save into the directory is under way, kCorrupt if the names of its files are unknown.
// After an error for a pin or for a save, `protection` says why the checkpoint stays; null: the caller need not know.
// `count`: gets the number of files.
Result<CheckpointRemoval> remove_checkpoint(storage::Storage& storage, const MetadataInPlace& chosen, Removal removal,
                                            std::string* protection = nullptr, WorkCount* count = nullptr);

// Whether a removal has begun and not ended: a crash has interrupted it, or another process is removing. True if the
// storage does not answer.
bool has_begun_removal(const storage::Storage& storage);

// Finishes a removal that a crash has interrupted; nullopt if there is none.
Result<std::optional<CheckpointRemoval>> finish_removal(storage::Storage& storage, Removal removal,
                                                        WorkCount* count = nullptr);

}  // namespace cairn::commit
