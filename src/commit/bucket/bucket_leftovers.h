// The removal of files that no checkpoint needs any more, in a storage without a rename: step 7 of bucket_commit.cc.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "storage/storage.h"

namespace cairn::commit {

// The whole step 7, after the save `mine` has committed `metadata_name` with the files `committed`. Returns a warning
// for each file that could not be removed.
std::vector<std::string> clean_bucket(storage::Storage& storage, const SaveId& mine, const std::string& metadata_name,
                                      const std::vector<std::string>& committed,
                                      const std::vector<std::string>& orphans);

// Step 7a, for a save of rank `rank` alone: the directory is not listed, as it may hold the files of very many ranks.
// Dead saves are left for a save of all ranks, or for remove_dead_saves().
std::vector<std::string> clean_bucket_as_rank(storage::Storage& storage, const std::vector<std::string>& committed,
                                              const std::vector<std::string>& orphans, std::uint32_t rank);

// Steps 7b to 7d, of one save; a save that is alive or in doubt is left alone. An error if the directory can't be read.
Result<void> end_dead_save_in_bucket(storage::Storage& storage, const SaveId& save_id,
                                     std::vector<std::string>& warnings);

}  // namespace cairn::commit
