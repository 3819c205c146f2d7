// Model leftovers: the files of a replaced safetensors model, and the files of dead saves of models.
//
// Removes only regular files of the directory itself: the index, and files `*.safetensors` that an index names, that
// have the name of a model's file, or that belong to a save that Cairn can identify. Foreign files stay, and a file
// that has changed since the commit stays. If Cairn cannot tell whether a save has committed, all its files stay.
#pragma once

#include <cairn/result.h>

#include <string>
#include <string_view>
#include <vector>

#include "commit/model/model_in_place.h"
#include "commit/storage_clock.h"
#include "storage/storage.h"

namespace cairn::commit {

// The index of the save, in the save's folder before the commit.
inline constexpr std::string_view kSealedIndexName = "index";

// The mark of a save that concerns one file, in the save's folder before the commit. A dead save with the mark has
// nothing to complete and nothing to undo.
inline constexpr std::string_view kOneFileName = "one-file";

// The files of `old` without `kept`. `model.safetensors` comes first.
std::vector<StampedFile> replaced_model_files(const ModelInPlace& old, const std::vector<std::string>& kept);

// The text of kReplacedName in the folder of a model's save, and for shards of kCommittedName.
std::string encode_replaced_files(const std::vector<StampedFile>& files);

// Removes the files that have not changed, in this order. Fails if `model.safetensors` could not be removed, which
// transformers takes before any other file; adds a warning for each other file.
Result<void> remove_replaced_files(storage::Storage& storage, const std::vector<StampedFile>& files,
                                   std::vector<std::string>& warnings);

// Removes the folder of a committed save: the lease first, and the mark of the commit last. A lease in the folder
// therefore says that the mark has not been removed yet.
void remove_committed_folder(storage::Storage& storage, const std::string& folder, std::vector<std::string>& warnings);

// Ends the dead saves of models. A committed save is completed: a single file's index is put in place, and the replaced
// files are removed. The published files of an uncommitted save are removed. A save counts as committed if the index in
// place or `model.safetensors` is of the save, if the folder holds the mark of a commit and all shards are there, or if
// the directory holds all shards of the save and no other model, which is the model to a reader. Call under the
// directory's lock. `mine` is not dead.
Result<void> end_dead_model_saves(storage::Storage& storage, const SaveId& mine, std::vector<std::string>& warnings);
// As above, for one save, and for a caller without a save of its own; `clock` judges the lease.
Result<void> end_dead_model_save(storage::Storage& storage, const SaveId& save_id, const StorageClock& clock,
                                 std::vector<std::string>& warnings);

// Whether the folder holds nothing but kOneFileName. remove_committed_folder() has then removed everything else, the
// lease first: the save has ended, and its lease will never run out.
bool holds_only_mark_of_one_file(const storage::Storage& storage, const std::string& folder);

}  // namespace cairn::commit
