// The commit of a DCP checkpoint into a storage without a rename: a bucket. The steps are at the top of
// bucket_commit.cc.
#pragma once

#include <memory>

#include "commit/commit_strategy.h"
#include "commit/lease.h"
#include "commit/metadata_commit.h"
#include "storage/storage.h"

namespace cairn::commit {

// For claim_checkpoint(). `storage` must outlive the strategy.
std::unique_ptr<CommitStrategy> commit_in_bucket(storage::Storage& storage, const SaveIdentity& identity,
                                                 const ClaimOptions& options);

// kUnsupported: what a bucket can't hold, as `what` names it.
Result<void> refuse_in_bucket(const storage::Storage& storage, std::string_view what);

}  // namespace cairn::commit
