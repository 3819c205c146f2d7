#include "save/plan_terms.h"

#include "format/manifest/varint.h"
#include "save_plan/local_plans.h"

namespace cairn::checkpointer {

std::string plan_terms(const SaveOptions& options, std::size_t rank, std::size_t size) {
  const std::uint64_t number = options.alone_as_rank.value_or(static_cast<std::uint32_t>(rank));
  std::string text;
  for (const std::uint64_t term : {std::uint64_t{size}, std::uint64_t{rank}, std::uint64_t{options.coordinator_rank},
                                   number, std::uint64_t{options.dedup_to_lowest_rank}}) {
    manifest::append_varint(text, term);
  }
  return text + options.metadata_attributes;  // part of the plan's `.metadata`
}

Fingerprint plan_fingerprint(std::string_view local_plan, std::string_view terms) {
  return fingerprint_of({save_plan::items_of_message(local_plan), terms});
}

std::vector<manifest::RecordedPlan::Rank> recorded_ranks(std::span<const std::string> local_plans,
                                                         const SaveOptions& options) {
  std::vector<manifest::RecordedPlan::Rank> ranks(local_plans.size());
  if (ranks.size() == 1) return ranks;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].local_plan = plan_fingerprint(local_plans[rank], plan_terms(options, rank, ranks.size()));
  }
  return ranks;
}

}  // namespace cairn::checkpointer
