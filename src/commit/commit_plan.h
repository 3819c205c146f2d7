// CommitPlan: the coordinator's part of the commit that stays equal from save to save of an unchanged state: the number
// of files and the fingerprint of each rank, and the template of `.metadata`.
//
// Immutable: safe to use from several threads.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "commit/rank_save.h"
#include "commit/save_ticket.h"
#include "format/dcp/metadata_template.h"
#include "format/manifest/recorded_plan.h"
#include "format/manifest/varint.h"

namespace cairn::commit {

class CommitPlan {
 public:
  // `ranks` have as many files together as `metadata`.
  CommitPlan(dcp::MetadataTemplate metadata, std::vector<manifest::RecordedPlan::Rank> ranks);

  // The pickle of `.metadata` for a save. `place` is the coordinator's place.
  std::string pickle(const SaveTicket& ticket, const RankPlace& place, std::string_view checkpoint_id) const;
  CommitRequest commit_request(const SaveTicket& ticket, const RankPlace& place, std::string_view checkpoint_id) const;

  // Encodes the plan for the coordinator's writer process. read() fails with kCorrupt for bytes that append_to() cannot
  // have written.
  void append_to(std::string& out) const;
  static Result<CommitPlan> read(manifest::CodedReader& reader);

 private:
  std::vector<std::vector<std::string>> files(const SaveTicket& ticket, const RankPlace& place) const;
  std::string render(const SaveTicket& ticket, std::string_view checkpoint_id,
                     const std::vector<std::vector<std::string>>& files) const;

  dcp::MetadataTemplate metadata_;
  std::vector<manifest::RecordedPlan::Rank> ranks_;
};

}  // namespace cairn::commit
