// CheckpointCommit: what the commits of a DCP checkpoint have in common, by a rename (metadata_commit.cc) and into a
// bucket (bucket/bucket_commit.cc): what is in place, and whether the save may replace it.
#pragma once

#include <cairn/result.h>

#include <string>
#include <vector>

#include "commit/commit_strategy.h"
#include "commit/metadata_commit.h"
#include "commit/metadata_in_place.h"
#include "commit/private_folder.h"
#include "storage/storage.h"

namespace cairn::commit {

class CheckpointCommit : public CommitStrategy {
 protected:
  CheckpointCommit(storage::Storage& storage, const SaveIdentity& identity, const ClaimOptions& options)
      : CommitStrategy(storage, identity), options_(options), metadata_name_(metadata_name(options.alone_as_rank)) {}

  // (1) Whether the options allow the save to replace `now`.
  Result<void> check_overwrite(const MetadataInPlace& now) const;
  // (1) kInvalidArgument if `files`, the directory's, have a model that the options refuse.
  Result<void> check_model(const std::vector<storage::ListedFile>& files) const;
  // (5) kSuperseded if `now` is neither what was in place at the claim, nor an earlier save of this job.
  Result<void> check_not_superseded(const MetadataInPlace& now) const;
  bool is_mine(const MetadataInPlace& now) const { return now.record && now.record->save_id == identity_.save_id; }

  const ClaimOptions options_;
  const std::string metadata_name_;
  MetadataInPlace seen_;              // at the claim
  std::vector<std::string> files_;    // of this save
  std::vector<std::string> orphans_;  // of the replaced checkpoint
};

}  // namespace cairn::commit
