// CommitPlan: what the coordinator commits, save after save of a state that is built alike: the files of all ranks, and
// what `.metadata` is made from.
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
#include "format/manifest/varint.h"

namespace cairn::commit {

class CommitPlan {
 public:
  // `file_counts` by rank: together as many as the metadata has files.
  CommitPlan(dcp::MetadataTemplate metadata, std::vector<std::uint32_t> file_counts);

  // The pickle of `.metadata` of one save. `place` is the coordinator's.
  std::string pickle(const SaveTicket& ticket, const RankPlace& place, std::string_view checkpoint_id) const;
  CommitRequest commit_request(const SaveTicket& ticket, const RankPlace& place, std::string_view checkpoint_id) const;

  // For a message to the coordinator's writer. What was not appended by append_to() fails with kCorrupt.
  void append_to(std::string& out) const;
  static Result<CommitPlan> read(manifest::CodedReader& reader);

 private:
  std::vector<std::vector<std::string>> files(const SaveTicket& ticket, const RankPlace& place) const;
  std::string render(const SaveTicket& ticket, std::string_view checkpoint_id,
                     const std::vector<std::vector<std::string>>& files) const;

  dcp::MetadataTemplate metadata_;
  std::vector<std::uint32_t> file_counts_;
};

}  // namespace cairn::commit
