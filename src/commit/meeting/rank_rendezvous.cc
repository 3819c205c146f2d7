#include "commit/meeting/rank_rendezvous.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "commit/meeting/periodic.h"
#include "commit/meeting/reported_files.h"
#include "commit/meeting/slowing_pace.h"
#include "format/manifest/trailer.h"
#include "storage/backoff.h"

namespace cairn::commit {
namespace {

// For ranks that are still busy when the decision is made: later the folder is gone, and with it the reason of a
// failure.
constexpr std::chrono::seconds kHearingMax{20};
// In a bucket a waiting rank looks twice in a minute (decision_watch.cc).
constexpr std::chrono::seconds kBucketHearingMax{60};
constexpr std::chrono::seconds kHearingLookMax{5};
constexpr std::chrono::milliseconds kHearingLookMin{200};
// Every waiting rank looks once in this time.
constexpr std::chrono::milliseconds kOneLookMax = kLookIntervalMax + std::chrono::milliseconds(500);
// For ranks that have not come yet: all ranks have planned together, a moment ago.
constexpr std::chrono::seconds kComingMax{3};
// The longest interval between two looks. Each rank's turn comes within kLooksPerTurn looks.
constexpr std::chrono::milliseconds kLookInterval{1000};
constexpr std::size_t kRanksPerLookMin = 64;
constexpr std::size_t kLooksPerTurn = 16;
// Between two listings of the folder, for failures without a hint.
constexpr std::chrono::seconds kListingInterval{30};

// The entry of a file in place. Nullopt while the file is missing or differs from the expected file; `problem` then
// holds the reason.
std::optional<manifest::CommitRecord::File> file_in_place(const storage::Storage& storage, const std::string& name,
                                                          const SaveIdentity& identity, std::optional<Error>& problem) {
  const SaveId& save_id = identity.save_id;
  const auto file = storage.open(name, false);
  if (!file) {
    problem = file.error();
    return std::nullopt;
  }
  // No other save writes into the new directory, and the files have no trailers.
  if (identity.form == SaveForm::kDirectory) return manifest::CommitRecord::File{name, (*file)->size(), 0};
  const auto footer = manifest::read_trailer_footer(**file);
  if (!footer) {
    problem = footer.error();
    return std::nullopt;
  }
  if (!*footer || (*footer)->save_id != save_id) {
    problem = Error(ErrorCode::kCorrupt, "the data file belongs to a different save")
                  .file(name)
                  .expected("save " + to_hex(save_id))
                  .actual(*footer ? "save " + to_hex((*footer)->save_id) : "a file without a trailer");
    return std::nullopt;
  }
  return manifest::CommitRecord::File{name, (*file)->size(), (*footer)->checksum};
}

}  // namespace

std::vector<Error> RankRendezvous::failures() const {
  std::vector<Error> failures;
  auto seen = marks_.look();
  if (seen) {
    for (auto& [rank, failure] : seen->failures) failures.push_back(std::move(failure));
  } else if (seen.error().code() == ErrorCode::kUnsafe) {
    failures.push_back(std::move(seen).error());  // the folder was replaced: no other report can be read
  }
  return failures;
}

std::vector<Error> RankRendezvous::failures_if_hinted() const {
  const Result<bool> hint = marks_.has_failure();
  return hint && !*hint ? std::vector<Error>() : failures();
}

Result<void> RankRendezvous::take_files(Rank& rank) const {
  while (rank.files.size() < rank.expected->size()) {
    const std::string& next = (*rank.expected)[rank.files.size()];
    std::optional<Error> problem;
    if (auto file = file_in_place(storage_, next, identity_, problem)) {
      rank.files.push_back(*std::move(file));
      rank.next_seen = false;
      continue;
    }
    if (problem->code() == ErrorCode::kNotFound) return {};
    if (!std::exchange(rank.next_seen, true)) rank.next_since = Clock::now();
    if (Clock::now() - rank.next_since <= deadlines_.progress) return {};
    return std::move(*problem).rank(rank.number).while_doing("waiting for the rank's files");
  }
  return {};
}

std::optional<Error> RankRendezvous::loss_of(Rank& rank, Clock::time_point start) const {
  const auto lost = [&](const std::string& how) {
    Error error(ErrorCode::kUnavailable, "the rank is lost: " + how);
    const std::string holder = rank.lease.holder();
    if (!holder.empty()) error = std::move(error).while_doing("waiting for the files that " + holder + " writes");
    return std::move(error).rank(rank.number);
  };
  if (marks_.has_failure_of(rank.number)) return lost("it has failed");  // the hint of the failure may be missing
  const LeaseWatch::Liveness liveness = rank.lease.look(deadlines_);
  if (liveness != LeaseWatch::Liveness::kAbsent) rank.entered = true;
  switch (liveness) {
    case LeaseWatch::Liveness::kAlive: return std::nullopt;
    case LeaseWatch::Liveness::kDead: return lost("the process of its writer has died");
    case LeaseWatch::Liveness::kSilent: return lost("its writer sends no heartbeats any more");
    case LeaseWatch::Liveness::kStuck:
      return lost("its writer makes no progress: " + std::string(rank.lease.stall()->what()));
    case LeaseWatch::Liveness::kAbsent:
      if (rank.entered) return lost("its lease is gone, without a failure mark and without all files");
      if (Clock::now() - start > deadlines_.progress) return lost("its writer did not start within deadline_seconds");
      return std::nullopt;
  }
  return std::nullopt;
}

Result<void> RankRendezvous::look_at(Rank& rank, Clock::time_point start) const {
  CAIRN_TRY(take_files(rank));
  if (rank.is_complete()) return {};
  std::optional<Error> loss = loss_of(rank, start);
  if (!loss || rank.is_complete()) return {};
  // The rank's last action may have been to complete the files, or to report a failure. The rank is now inactive: a
  // second look is final.
  CAIRN_TRY(storage_.touched_at(""));
  CAIRN_TRY(take_files(rank));
  if (rank.is_complete()) return {};
  std::vector<Error> said = failures();
  if (said.empty()) said.push_back(*std::move(loss));
  return Error::of_ranks(std::move(said));
}

Result<bool> RankRendezvous::look_at_some(Waiting& waiting) const {
  (void)storage_.touched_at("");  // a network file system then finds new names
  std::vector<Rank*>& ranks = waiting.ranks;
  const std::size_t count = std::min(waiting.per_look, ranks.size());
  std::size_t first = 0;
  for (; first < count; ++first) {
    CAIRN_TRY(look_at(*ranks[first], waiting.start));
    if (!ranks[first]->is_complete()) break;
  }
  const bool all_complete = first == count;
  auto at = std::lower_bound(ranks.begin(), ranks.end(), waiting.turn,
                             [](const Rank* rank, std::uint32_t number) { return rank->number < number; });
  for (std::size_t i = 0; i < count && !all_complete; ++i, ++at) {
    if (at == ranks.end()) at = ranks.begin();
    if (!(*at)->is_complete()) CAIRN_TRY(look_at(**at, waiting.start));
    waiting.turn = (*at)->number + 1;
  }
  std::erase_if(ranks, [](const Rank* rank) { return rank->is_complete(); });
  // Without a call into the storage.
  const auto dead = std::find_if(ranks.begin(), ranks.end(), [](Rank* rank) { return rank->lease.holder_is_dead(); });
  if (dead != ranks.end()) CAIRN_TRY(look_at(**dead, waiting.start));
  return all_complete;
}

Result<std::vector<RankRendezvous::Files>> RankRendezvous::wait_for_files(
    const std::vector<std::vector<std::string>>& expected, std::uint32_t mine,
    const std::function<bool()>& interrupted) {
  if (!storage_.has_rename()) return wait_for_reports(storage_, marks_, deadlines_, {expected, mine}, interrupted);
  const Clock::time_point start = Clock::now();
  std::vector<Rank> ranks;
  ranks.reserve(expected.size());
  Waiting waiting{{}, 0, std::max(kRanksPerLookMin, expected.size() / kLooksPerTurn), start};
  for (std::uint32_t rank = 0; rank < expected.size(); ++rank) {
    if (rank == mine) continue;
    ranks.push_back(
        {rank, &expected[rank], LeaseWatch(storage_, marks_.path_of(rank_lease_name(rank))), false, {}, {}, false});
    waiting.ranks.push_back(&ranks.back());
  }
  SlowingPace pace(kLookInterval);
  Periodic listing(kListingInterval);
  for (storage::Backoff backoff; !waiting.ranks.empty(); backoff.pause()) {
    if (pace.is_due()) {
      std::vector<Error> said = listing.is_due() ? failures() : failures_if_hinted();
      if (!said.empty()) return Error::of_ranks(std::move(said));
      CAIRN_TRY_ASSIGN(const bool all_complete, look_at_some(waiting));
      if (all_complete) {
        pace.restart();
        backoff.reset();
      }
    }
    if (interrupted && interrupted()) {
      return Error(ErrorCode::kCancelled, "interrupted while waiting for the files of the ranks");
    }
  }
  std::vector<Files> files(expected.size());
  for (Rank& rank : ranks) files[rank.number] = std::move(rank.files);
  return files;
}

void RankRendezvous::wait_until_heard(const std::function<bool()>& interrupted, std::size_t others) const {
  const Clock::time_point start = Clock::now();
  const auto hurry = [&] { return interrupted && interrupted(); };
  const auto is_late = [&] {
    const Clock::duration patient = storage_.has_rename() ? kHearingMax : kBucketHearingMax;
    const Clock::duration longest = hurry() ? Clock::duration(kOneLookMax) : patient;
    return Clock::now() - start > longest;
  };
  SlowingPace listing_pace =
      storage_.has_rename() ? SlowingPace(kLookInterval) : SlowingPace(kHearingLookMax, kHearingLookMin);
  std::set<std::uint32_t> came;
  for (storage::Backoff backoff; !is_late(); backoff.pause()) {
    if (!listing_pace.is_due()) continue;
    const auto seen = marks_.look();
    if (!seen) return;
    const bool someone_listened = storage_.has_rename() ? wait_for_leases(seen->leases, is_late)
                                                        : has_living_rank(storage_, marks_, seen->leases);
    came.insert(seen->leases.begin(), seen->leases.end());
    for (const auto& [rank, failure] : seen->failures) came.insert(rank);
    const bool someone_comes = came.size() < others && !hurry() && Clock::now() - start < kComingMax;
    // A rank in `without_reason` has no lease any more. Nothing shows when the rank has read the decision.
    const bool someone_looks = !seen->without_reason.empty() && !hurry() && Clock::now() - start < kOneLookMax;
    if (!someone_listened && !someone_comes && !someone_looks) return;
  }
}

bool RankRendezvous::wait_for_leases(const std::set<std::uint32_t>& leases,
                                     const std::function<bool()>& is_late) const {
  bool someone_listened = false;
  for (const std::uint32_t rank : leases) {
    LeaseWatch watch(storage_, marks_.path_of(rank_lease_name(rank)));
    SlowingPace pace(kLookInterval);
    for (storage::Backoff backoff; !is_late(); backoff.pause()) {
      if (!pace.is_due()) continue;
      if (watch.look(deadlines_) != LeaseWatch::Liveness::kAlive) break;
      someone_listened = true;
    }
  }
  return someone_listened;
}

}  // namespace cairn::commit
