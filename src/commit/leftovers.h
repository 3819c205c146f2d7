// Leftovers: files that no checkpoint needs any more: those of a replaced checkpoint, and those of saves that died.
//
// Only regular files inside the directory are ever removed, and only if Cairn can tell whose they were.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/manifest/commit_record.h"
#include "storage/storage.h"

namespace cairn::commit {

struct MetadataInPlace;

// Whether this save wrote that data file: its name tells, or else its trailer. False if it can't be read.
bool belongs_to(const storage::Storage& storage, const std::string& name, const SaveId& save_id);

// Without a commit record the names of a checkpoint's files are in its pickle, which is decoded for them. A larger one
// counts as one that can't be read: 200,000 chunks of torch 2.13 (1,000 ranks) take 29 MB, and decoding takes at most
// 60 times the size (core/byte_budget.h).
inline constexpr std::uint64_t kDecodedMetadataBytesMax = std::uint64_t{256} << 20;

// The files that `old`, which was read from `metadata_name`, names and the new record does not. Empty if `old` can't be
// read: then they are not known.
std::vector<std::string> orphaned_files(const storage::Storage& storage, const std::string& metadata_name,
                                        const MetadataInPlace& old, const manifest::CommitRecord& record);

// Leaves the list in the save's folder before the commit, so that a later save can finish the removal if this one dies.
Result<void> write_replaced_list(storage::Storage& storage, std::string_view folder,
                                 const std::vector<std::string>& names);

// Data files that leaked: no metadata names them, and their save has no private folder any more by which it could be
// known for dead. Without a lock of the directory they are kept: a save that commits meanwhile could be taken for one.
enum class LeakedFiles : std::uint8_t { kKeep, kRemove };

// Removes `orphans`, the folders and files of saves whose lease has run out, and perhaps files that leaked. `mine` is
// the save that just committed `record`, whose files stay. Returns what could not be removed, in words.
std::vector<std::string> clean_up(storage::Storage& storage, const SaveId& mine, const manifest::CommitRecord& record,
                                  const std::vector<std::string>& orphans, LeakedFiles leaked);

// The same for one save whose process died; nothing is removed if one of its leases has not run out. The process may
// have died between the rename of `.metadata` and the sync, so the directory is synced first: until then a power cut
// can bring back the old `.metadata`, which needs the old files. If the sync fails, its error is returned and nothing
// is removed.
Result<void> clean_up_after(storage::Storage& storage, const SaveId& save_id);

// Removes a private folder with all that is in it; kLease: all but its lease, which still says whose files lie about.
enum class Keep : std::uint8_t { kNothing, kLease };
void remove_private_folder(storage::Storage& storage, std::string_view folder, std::vector<std::string>& warnings,
                           Keep keep = Keep::kNothing);

}  // namespace cairn::commit
