// The removal of a committed checkpoint from a storage without a rename. The steps are at the top of bucket_removal.cc.
#pragma once

#include <cairn/result.h>

#include <optional>
#include <string>
#include <vector>

#include "commit/checkpoint_removal.h"
#include "commit/metadata_in_place.h"
#include "commit/removal_log.h"

namespace cairn::commit {

// Steps 3 to 6, of the chosen checkpoint with the data files `names`. `protection`: as in remove_checkpoint().
Result<CheckpointRemoval> remove_from_bucket(RemovalLog& log, const MetadataInPlace& chosen,
                                             const std::vector<std::string>& names, std::string& protection);

// Finishes or takes back a removal that a crash has interrupted; nullopt if there is none, or if it was taken back.
Result<std::optional<CheckpointRemoval>> finish_removal_from_bucket(RemovalLog& log);

}  // namespace cairn::commit
