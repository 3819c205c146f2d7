// The commit of a whole directory, whose files no document names: by the rename of the directory, or by the exchange of
// its name with that of the old directory. For files in the form of Meta's torch_checkpointing.
#pragma once

#include <cairn/result.h>

#include <memory>
#include <string>

#include "commit/lease.h"
#include "commit/save_transaction.h"
#include "storage/storage.h"

namespace cairn::commit {

struct DirectoryClaimOptions {
  std::string name;       // that the commit gives the directory of `storage`, beside its present name
  bool overwrite = true;  // false: a directory with files at the name is an error (kInvalidArgument)
};

// Step 1. `identity.form` is kDirectory. `storage` is the save's new directory (new_directory.h) and outlives the
// transaction; `progress` is for the transaction's lease. Errors refuse the save: kInvalidArgument for a directory at
// the name that is no checkpoint of torch_checkpointing, kUnsupported if the file system can't exchange directories.
Result<std::unique_ptr<SaveTransaction>> claim_directory(storage::Storage& storage, const SaveIdentity& identity,
                                                         const DirectoryClaimOptions& options,
                                                         Lease::Progress progress = {});

}  // namespace cairn::commit
