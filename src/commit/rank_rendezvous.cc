#include "commit/rank_rendezvous.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "format/manifest/trailer.h"
#include "storage/backoff.h"

namespace cairn::commit {
namespace {

// For ranks that are still busy when the decision is made: later the folder is gone, and with it the reason of a
// failure.
constexpr std::chrono::seconds kHearingMax{20};
constexpr std::chrono::seconds kHearingMaxIfInterrupted{1};
// For ranks that have not come yet: all ranks have planned together, a moment ago.
constexpr std::chrono::seconds kComingMax{3};
// Many times the interval between two looks at the marks.
constexpr std::chrono::seconds kLookingMax{1};

// The entry of a file in place. Nullopt while the file is missing or differs from the expected file; `problem` then
// holds the reason.
std::optional<manifest::CommitRecord::File> look_at(const storage::Storage& storage, const std::string& name,
                                                    const SaveId& save_id, std::optional<Error>& problem) {
  const auto file = storage.open(name, false);
  if (!file) {
    problem = file.error();
    return std::nullopt;
  }
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

RankRendezvous::Reports RankRendezvous::reports() const {
  Reports reports;
  auto seen = marks_.look();
  if (seen) {
    reports.leases = std::move(seen->leases);
    for (auto& [rank, failure] : seen->failures) reports.failures.push_back(std::move(failure));
  } else if (seen.error().code() == ErrorCode::kUnsafe) {
    reports.failures.push_back(std::move(seen).error());  // the folder was replaced: no further report can be read
  }
  return reports;
}

std::vector<Error> RankRendezvous::failures() const { return reports().failures; }

Result<std::unordered_set<std::string>> RankRendezvous::names_in_directory() const {
  // Network file systems cache missing names; a new listing refreshes the cache.
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> listed, storage_.list());
  std::unordered_set<std::string> names;
  for (const storage::ListedFile& file : listed) names.insert(file.name);
  return names;
}

Result<void> RankRendezvous::take_files(Rank& rank, const std::unordered_set<std::string>& names) const {
  while (rank.files.size() < rank.expected->size()) {
    const std::string& next = (*rank.expected)[rank.files.size()];
    if (!names.contains(next)) return {};
    std::optional<Error> problem;
    if (auto file = look_at(storage_, next, save_id_, problem)) {
      rank.files.push_back(*std::move(file));
      rank.next_seen = false;
      continue;
    }
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

Result<void> RankRendezvous::check_losses(std::vector<Rank>& ranks, Clock::time_point start) const {
  std::vector<Error> lost;
  for (Rank& rank : ranks) {
    if (rank.is_complete()) continue;
    std::optional<Error> loss = loss_of(rank, start);
    if (!loss) continue;
    // The rank's last action may have been to complete the files, or to report a failure. The rank is now inactive: a
    // second look is final.
    CAIRN_TRY_ASSIGN(const std::unordered_set<std::string> names, names_in_directory());
    CAIRN_TRY(take_files(rank, names));
    if (!rank.is_complete()) lost.push_back(*std::move(loss));
  }
  if (lost.empty()) return {};
  std::vector<Error> said = failures();
  return Error::of_ranks(std::move(said.empty() ? lost : said));
}

Result<std::vector<RankRendezvous::Files>> RankRendezvous::wait_for_files(
    const std::vector<std::vector<std::string>>& expected, std::uint32_t mine,
    const std::function<bool()>& interrupted) {
  const Clock::time_point start = Clock::now();
  std::vector<Rank> ranks;
  for (std::uint32_t rank = 0; rank < expected.size(); ++rank) {
    if (rank == mine) continue;
    ranks.push_back(
        {rank, &expected[rank], LeaseWatch(storage_, marks_.path_of(rank_lease_name(rank))), false, {}, {}, false});
  }
  storage::Backoff backoff;
  for (Clock::time_point life_at = start;;) {
    Reports said = reports();
    if (!said.failures.empty()) return Error::of_ranks(std::move(said.failures));
    CAIRN_TRY_ASSIGN(const std::unordered_set<std::string> names, names_in_directory());
    for (Rank& rank : ranks) {
      // For a rank with files, a listed lease decides nothing: a network file system may not open the lease yet.
      if (rank.expected->empty() && said.leases.contains(rank.number)) rank.entered = true;
      CAIRN_TRY(take_files(rank, names));
    }
    if (std::all_of(ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.is_complete(); })) break;
    if (Clock::now() >= life_at) {
      CAIRN_TRY(check_losses(ranks, start));
      life_at = Clock::now() + kLivenessInterval;
    }
    if (interrupted && interrupted()) {
      return Error(ErrorCode::kCancelled, "interrupted while waiting for the files of the ranks");
    }
    backoff.pause();
  }
  std::vector<Files> files(expected.size());
  for (Rank& rank : ranks) files[rank.number] = std::move(rank.files);
  return files;
}

void RankRendezvous::wait_until_heard(const std::function<bool()>& interrupted, std::size_t others) const {
  const Clock::time_point start = Clock::now();
  std::map<std::uint32_t, LeaseWatch> watches;
  std::set<std::uint32_t> came;
  storage::Backoff backoff;
  for (;;) {
    const auto seen = marks_.look();
    const bool hurry = interrupted && interrupted();
    if (!seen || Clock::now() - start > (hurry ? kHearingMaxIfInterrupted : kHearingMax)) return;
    const bool someone_listens = std::any_of(seen->leases.begin(), seen->leases.end(), [&](std::uint32_t rank) {
      auto [watch, added] = watches.try_emplace(rank, storage_, marks_.path_of(rank_lease_name(rank)));
      return watch->second.look(deadlines_) == LeaseWatch::Liveness::kAlive;
    });
    came.insert(seen->leases.begin(), seen->leases.end());
    for (const auto& [rank, failure] : seen->failures) came.insert(rank);
    const bool someone_comes = came.size() < others && !hurry && Clock::now() - start < kComingMax;
    // A rank in `without_reason` has no lease any more. Nothing shows when the rank has read the decision.
    const bool someone_looks = !seen->without_reason.empty() && !hurry && Clock::now() - start < kLookingMax;
    if (!someone_listens && !someone_comes && !someone_looks) return;
    backoff.pause();
  }
}

}  // namespace cairn::commit
