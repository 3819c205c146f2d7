// The options of a save's claim that follow from the options of the save.
#pragma once

#include <cairn/save.h>

#include "commit/metadata_commit.h"

namespace cairn::checkpointer {

// `names_taken`: a rank's own directory holds files of DCP's names.
inline commit::ClaimOptions claim_options_of(const SaveOptions& options, bool names_taken = false) {
  // The claim of a rank that saves alone looks for one file only.
  const bool many_files_alone = options.alone_as_rank && options.file_per_item;
  return {.overwrite = options.overwrite,
          .alone_as_rank = options.alone_as_rank,
          .names_taken = names_taken || many_files_alone,
          .overwrite_pinned = options.overwrite_pinned,
          .single_writer = options.single_writer};
}

}  // namespace cairn::checkpointer
