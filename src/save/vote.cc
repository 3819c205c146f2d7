#include "save/vote.h"

#include <cairn/version.h>

#include <bit>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

#include "core/checksum.h"

namespace cairn::checkpointer {
namespace {

// The places of the numbers. Of a number that all ranks must share, the complement is sent too: the smallest complement
// is the complement of the largest number.
enum Place : std::uint8_t {
  kIsWell,
  kVersionNumber,
  kVersionComplement,
  kCoordinator,
  kCoordinatorComplement,
  kPlan,
  kPlanComplement,
  kContent,                                             // of each set of ranks the sum and its complement
  kNoneNoted = kContent + 2 * save_plan::kRankSetsMax,  // 0 from a rank that has noted differences
  kNamesFree,
  kLacksTicket,  // 0 from the coordinator, whose next numbers are smaller than those of all other ranks, or equal
  kSaveHigh,
  kSaveLow,
  kJobHigh,
  kJobLow,
  kSaveNumber,
  kJobStart,
  kFlags,
  kPlaces,
};

constexpr std::int64_t kNeutral = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kFreshFlag = 1;
constexpr std::int64_t kModelFlag = 2;

std::int64_t as_number(std::uint64_t bits) { return std::bit_cast<std::int64_t>(bits); }
std::uint64_t as_bits(std::int64_t number) { return std::bit_cast<std::uint64_t>(number); }

std::int64_t version_number() { return crc32(std::as_bytes(std::span(std::string_view(kVersion)))); }

Result<void> check_coordinator(const coordination::Ranks& ranks) {
  if (ranks.coordinator() < ranks.size()) return {};
  return Error(ErrorCode::kInvalidArgument, "the coordinator of the save is not one of its ranks")
      .expected("a coordinator_rank below " + std::to_string(ranks.size()))
      .actual(std::to_string(ranks.coordinator()));
}

// A collective step.
Result<void> compare_coordinators(coordination::Ranks& ranks) {
  CAIRN_TRY_ASSIGN(const std::vector<std::string> all, ranks.all_gather(std::to_string(ranks.coordinator())));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all.front()) continue;
    return Error(ErrorCode::kInvalidArgument, "the ranks of the save disagree about the coordinator")
        .rank(static_cast<std::int64_t>(rank))
        .expected("coordinator_rank " + all.front() + ", as on rank 0")
        .actual("coordinator_rank " + all[rank]);
  }
  return {};
}

}  // namespace

std::vector<std::int64_t> numbers_of(const std::optional<Vote>& vote) {
  std::vector<std::int64_t> numbers(kPlaces, kNeutral);
  numbers[kIsWell] = vote ? 1 : 0;
  if (!vote) return numbers;
  numbers[kVersionNumber] = version_number();
  numbers[kVersionComplement] = ~version_number();
  numbers[kCoordinator] = as_number(vote->coordinator);
  numbers[kCoordinatorComplement] = ~as_number(vote->coordinator);
  numbers[kPlan] = as_number(vote->plan_id);
  numbers[kPlanComplement] = ~as_number(vote->plan_id);
  for (std::size_t set = 0; set < vote->content_sums.size(); ++set) {
    const std::optional<std::uint64_t> sum = vote->content_sums[set];
    if (!sum) continue;  // neutral
    numbers[kContent + 2 * set] = as_number(*sum);
    numbers[kContent + 2 * set + 1] = ~as_number(*sum);
  }
  numbers[kNoneNoted] = vote->differences_noted ? 0 : 1;
  numbers[kNamesFree] = vote->names_free ? 1 : 0;
  numbers[kLacksTicket] = vote->ticket ? 0 : 1;
  if (!vote->ticket) return numbers;
  const commit::SaveIdentity& identity = vote->ticket->identity;
  numbers[kSaveHigh] = as_number(identity.save_id.high);
  numbers[kSaveLow] = as_number(identity.save_id.low);
  numbers[kJobHigh] = as_number(identity.job_id.high);
  numbers[kJobLow] = as_number(identity.job_id.low);
  numbers[kSaveNumber] = as_number(identity.save_number);
  numbers[kJobStart] = as_number(identity.job_start);
  numbers[kFlags] =
      (vote->ticket->fresh ? kFreshFlag : 0) | (identity.form == commit::SaveForm::kModel ? kModelFlag : 0);
  return numbers;
}

Result<VoteCount> count_votes(std::span<const std::int64_t> smallest) {
  if (smallest.size() != kPlaces) return Error(ErrorCode::kCorrupt, "votes with a wrong number of numbers");
  VoteCount count;
  if (smallest[kIsWell] == 0) return count;
  count.all_well = smallest[kVersionNumber] == ~smallest[kVersionComplement] &&
                   smallest[kCoordinator] == ~smallest[kCoordinatorComplement];
  if (!count.all_well) return count;
  if (smallest[kPlan] == ~smallest[kPlanComplement]) count.plan_id = as_bits(smallest[kPlan]);
  for (std::size_t set = 0; count.plan_id != 0 && set < save_plan::kRankSetsMax; ++set) {
    const std::int64_t sum = smallest[kContent + 2 * set], complement = smallest[kContent + 2 * set + 1];
    count.different[set] = sum != ~complement && complement != kNeutral;
  }
  count.differences_noted = smallest[kNoneNoted] == 0;
  if (smallest[kLacksTicket] != 0) return count;
  const std::int64_t flags = smallest[kFlags];
  if ((flags & ~(kFreshFlag | kModelFlag)) != 0) return Error(ErrorCode::kCorrupt, "votes with an unknown ticket");
  commit::SaveTicket& ticket = count.ticket.emplace();
  ticket.identity.save_id = {as_bits(smallest[kSaveHigh]), as_bits(smallest[kSaveLow])};
  ticket.identity.job_id = {as_bits(smallest[kJobHigh]), as_bits(smallest[kJobLow])};
  ticket.identity.save_number = as_bits(smallest[kSaveNumber]);
  ticket.identity.job_start = as_bits(smallest[kJobStart]);
  ticket.identity.form = (flags & kModelFlag) != 0 ? commit::SaveForm::kModel : commit::SaveForm::kCheckpoint;
  ticket.fresh = (flags & kFreshFlag) != 0 && smallest[kNamesFree] != 0;
  return count;
}

Result<VoteCount> hold_vote(coordination::Ranks& ranks, const Result<Vote>& mine) {
  std::optional<Vote> vote;
  if (mine) vote.emplace(*mine).coordinator = ranks.coordinator();
  CAIRN_TRY_ASSIGN(const std::vector<std::int64_t> smallest, ranks.smallest(numbers_of(vote)));
  CAIRN_TRY_ASSIGN(VoteCount count, count_votes(smallest));
  if (count.all_well) {
    CAIRN_TRY(check_coordinator(ranks));
    return count;
  }
  CAIRN_TRY_ASSIGN(const std::vector<std::string> versions,
                   ranks.all_gather(mine ? Result<std::string>(std::string(kVersion)) : mine.error()));
  for (std::size_t rank = 0; rank < versions.size(); ++rank) {
    if (versions[rank] == kVersion) continue;
    return Error(ErrorCode::kUnsupported, "the ranks of the save run different versions of Cairn")
        .expected(kVersion)
        .actual(versions[rank])
        .rank(static_cast<std::int64_t>(rank));
  }
  CAIRN_TRY(compare_coordinators(ranks));
  return Error(ErrorCode::kInternal, "a rank has failed without a reason");
}

}  // namespace cairn::checkpointer
