// The commit of a DCP checkpoint, by the rename of its metadata file.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "commit/lease.h"
#include "commit/save_transaction.h"
#include "storage/storage.h"

namespace cairn::commit {

struct ClaimOptions {
  bool overwrite = true;
  // A rank that saves alone: the save commits `__{rank}.metadata`, and neither lists nor opens the files of other
  // ranks. `names_taken` must be set if the rank has more than one file.
  std::optional<std::uint32_t> alone_as_rank = {};
  bool names_taken = false;  // DCP's names are not free: for example another rank has files in its own directory
  // false: a pinned checkpoint is an error (kUnavailable). Not used by a rank that saves alone.
  bool overwrite_pinned = true;
  // Whether a safetensors model may be in the directory. torch allows it: Cairn then opens the checkpoint, and programs
  // that read models open the model. false: a model is an error (kInvalidArgument).
  bool beside_a_model = true;
  // Into an object store that ignores the conditions of writes: no other job writes into the directory, as the caller
  // promises. false: such a store is an error (kUnsupported).
  bool single_writer = false;
  // Of a save of a whole directory (directory_commit.h), which uses `overwrite` and no other option: the name that the
  // commit gives. Empty for a checkpoint.
  std::string directory_name = {};
};

// Step 1. `storage` must outlive the transaction; `progress` is for the transaction's lease. kInvalidArgument if a
// checkpoint exists and `overwrite` is false.
Result<std::unique_ptr<SaveTransaction>> claim_checkpoint(storage::Storage& storage, const SaveIdentity& identity,
                                                          const ClaimOptions& options = {},
                                                          Lease::Progress progress = {});

}  // namespace cairn::commit
