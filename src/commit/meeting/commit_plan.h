// CommitPlan: the coordinator's part of the commit that stays equal from save to save of an unchanged state: the number
// of files and the fingerprint of each rank, and the template of `.metadata`.
//
// The template is made in advance, or, of ranks with few common items or none (save_plan/shared_items.h), from the
// ranks' local plans when it is first needed: in an asynchronous save by the writer, beside the trainer. Threads:
// immutable but for the template, which one thread makes while the others wait.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commit/meeting/rank_save.h"
#include "commit/save_ticket.h"
#include "format/dcp/metadata_template.h"
#include "format/manifest/recorded_plan.h"
#include "format/manifest/varint.h"
#include "save_plan/shared_items.h"

namespace cairn::commit {

class CommitPlan {
 public:
  // `ranks` have as many files together as `metadata`.
  CommitPlan(dcp::MetadataTemplate metadata, std::vector<manifest::RecordedPlan::Rank> ranks);
  // `metadata_attributes`: the extra attributes of the metadata (SaveOptions).
  CommitPlan(save_plan::SharedPlans plans, std::string metadata_attributes,
             std::vector<manifest::RecordedPlan::Rank> ranks);

  // The pickle of `.metadata` for a save. `place` is the coordinator's place. Fails if the template can't be made: the
  // ranks disagree about a tensor (plan::plan_save()).
  Result<std::string> pickle(const SaveTicket& ticket, const RankPlace& place, std::string_view checkpoint_id) const;
  // The request's render() fails as pickle(), and may outlive the plan. `notes`: of the checkpoint (SaveOptions),
  // checked; they follow the pickle.
  CommitRequest commit_request(const SaveTicket& ticket, const RankPlace& place, std::string_view checkpoint_id,
                               std::string_view notes = {}) const;

  // Encodes the plan for the coordinator's writer process. read() fails with kCorrupt for bytes that append_to() cannot
  // have written.
  void append_to(std::string& out) const;
  static Result<CommitPlan> read(manifest::CodedReader& reader);

 private:
  class Metadata;

  std::shared_ptr<Metadata> metadata_;  // shared with the requests
};

}  // namespace cairn::commit
