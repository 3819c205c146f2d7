// Leftovers: files that no checkpoint needs any more: the files of a replaced checkpoint, and the files of dead saves.
//
// Removes only regular files inside the directory, and only files whose save Cairn can identify.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "commit/metadata_in_place.h"
#include "commit/storage_clock.h"
#include "core/seeded_hash.h"
#include "storage/storage.h"

namespace cairn::commit {

// Whether the save wrote the data file, according to the file's name, or else the file's trailer or header. False if
// the file cannot be read.
bool belongs_to(const storage::Storage& storage, const std::string& name, const SaveId& save_id);

// Without a commit record, the names of a checkpoint's files are only in the pickle, which must be decoded. A larger
// pickle counts as unreadable: 200,000 chunks of torch 2.13 (1,000 ranks) take 29 MB, and decoding takes at most 60
// times the size (core/byte_budget.h).
inline constexpr std::uint64_t kDecodedMetadataBytesMax = std::uint64_t{256} << 20;

// The files that `old`, as read from `metadata_name`, names and `files` lacks. Empty if `old` cannot be read: the names
// are then unknown.
std::vector<std::string> orphaned_files(const storage::Storage& storage, const std::string& metadata_name,
                                        const MetadataInPlace& old, const std::vector<std::string>& files);

// The data files of the checkpoint with the metadata `old`, as read from `metadata_name`. With a commit record, only
// the files that its save has written. kCorrupt if the names are unknown.
Result<std::vector<std::string>> files_of_checkpoint(const storage::Storage& storage, const std::string& metadata_name,
                                                     const MetadataInPlace& old);

// Removes those of the data files `names` that no metadata file of the directory except `except` needs. Returns a
// warning for each file that could not be removed; an error if the needed files are unknown.
Result<std::vector<std::string>> remove_unneeded(storage::Storage& storage, const std::vector<std::string>& names,
                                                 const std::string& except);

// A set of names from untrusted files.
using FileNames = std::unordered_set<std::string, SeededHash>;

// The data files that the metadata files among `files`, a listing of the directory, name; kCorrupt if they cannot be
// determined. A directory may hold several checkpoints: of all ranks, and of each rank that saved alone.
Result<FileNames> needed_by(const storage::Storage& storage, const std::vector<storage::ListedFile>& files);

// Removes those of `names` that are data files of the directory itself and not `needed`. Adds a warning for each file
// that could not be removed.
void remove_data_files(storage::Storage& storage, const std::vector<std::string>& names, const FileNames& needed,
                       std::vector<std::string>& warnings);

// The names in the list of a dead save; empty if there is none.
std::vector<std::string> read_replaced_names(const storage::Storage& storage, const std::string& folder);

// The text of kReplacedName in the folder of a checkpoint's save.
std::string encode_replaced_names(const std::vector<std::string>& names);

// Whether to remove leaked data files: files that no metadata names, and whose save has no private folder any more by
// which a later save could recognise the save as dead. Without a lock of the directory leaked files are kept: the files
// of a save that commits meanwhile would look like leaked files.
enum class LeakedFiles : std::uint8_t { kKeep, kRemove };

// Removes `orphans`, the folders and files of saves whose lease has run out, and, if requested, leaked files. `mine` is
// the save that has just committed `committed`; its files stay. Returns a warning for each file or folder that could
// not be removed.
std::vector<std::string> clean_up(storage::Storage& storage, const SaveId& mine,
                                  const std::vector<std::string>& committed, const std::vector<std::string>& orphans,
                                  LeakedFiles leaked);

// As clean_up(), for a save of rank `rank` alone. Removes only data files of this rank, of `orphans` and of the dead
// saves in the rank's note. The number of calls into the storage does not depend on the files of other ranks: if
// another metadata file than `.metadata` names files of this rank, the files are not kept for it.
std::vector<std::string> clean_up_as_rank(storage::Storage& storage, const SaveId& mine,
                                          const std::vector<std::string>& committed,
                                          const std::vector<std::string>& orphans, std::uint32_t rank);

// Removes the files and the folder of a save of a checkpoint, if its lease has run out by `clock`. Call under the
// directory's lock. An error if the needed files are unknown; adds a warning for each file that could not be removed.
Result<void> remove_dead_save(storage::Storage& storage, const SaveId& save_id, const StorageClock& clock,
                              std::vector<std::string>& warnings);

// Cleans up after a save whose process has died. Removes nothing if a lease of the save has not run out. The process
// may have died between the rename of `.metadata` and the sync of the directory. The directory is therefore synced
// first: before the sync, a power cut can bring back the old `.metadata`, which needs the old files. If the sync fails,
// returns the sync's error and removes nothing.
Result<void> clean_up_after(storage::Storage& storage, const SaveId& save_id);

}  // namespace cairn::commit
