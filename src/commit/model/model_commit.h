// The commit of a safetensors model, or of one file, by the rename of the index or of the file, or by a mark.
#pragma once

#include <cairn/result.h>

#include <memory>
#include <string>

#include "commit/lease.h"
#include "commit/save_transaction.h"
#include "format/safetensors/file_set.h"
#include "storage/storage.h"

namespace cairn::commit {

struct ModelClaimOptions {
  // kAlone: one file, committed by its own rename. kIndexed: several files, committed by the rename of the index.
  // kShards: the files of many ranks, without an index.
  safetensors::FileSet::Kind kind = safetensors::FileSet::Kind::kIndexed;
  bool overwrite = true;  // false: an existing model is an error (kInvalidArgument)
  // Shards without an index have no commit point: while shards replace a model, a reader may find the files of both.
  // false: an existing model is then an error (kInvalidArgument). true only for the input of a consolidation, whose
  // output is the model.
  bool overwrite_with_shards = false;
  bool names_taken = false;  // torch's names are not free: another rank has files in its own directory
  // Of kAlone: the one file that the save writes or replaces; all other files stay. The name of a file of several is an
  // error (kInvalidArgument): of a DCP checkpoint, of a model with an index, or a name that model_file_name() returns.
  // So is `model.safetensors` beside a model of several files, from which programs would then choose differently.
  // Empty: the save replaces the model of the directory by `model.safetensors`.
  std::string file_name = {};
};

// Step 1. `identity.form` is kModel. `storage` must outlive the transaction; `progress` is for the transaction's lease.
// Files of kAlone are not published: the file waits under RankFiles::private_name(file_name) for the commit.
Result<std::unique_ptr<SaveTransaction>> claim_model(storage::Storage& storage, const SaveIdentity& identity,
                                                     const ModelClaimOptions& options = {},
                                                     Lease::Progress progress = {});

}  // namespace cairn::commit
