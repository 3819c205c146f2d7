#include "commit/verdict_watch.h"

#include <utility>
#include <vector>

#include "commit/save_transaction.h"

namespace cairn::commit {
namespace {

constexpr std::chrono::milliseconds kLifeInterval{100};  // to ask for a process costs more than to look at a folder
// Every rank of a save looks, and the folder has a lease of each.
constexpr std::chrono::milliseconds kListingInterval{500};

}  // namespace

VerdictWatch::VerdictWatch(storage::Storage& storage, SaveMarks& marks, const Save& save,
                           const SaveDeadlines& deadlines)
    : storage_(storage),
      marks_(marks),
      save_(save),
      deadlines_(deadlines),
      lease_(storage, marks.path_of(kLeaseName)) {}

Result<std::optional<Verdict>> VerdictWatch::look() {
  if (Clock::now() < next_listing_) return marks_.look_for_verdict();
  next_listing_ = Clock::now() + kListingInterval;
  const Result<SaveMarks::Seen> seen = marks_.look();
  if (seen && seen->verdict) return seen->verdict;
  if (!seen && seen.error().code() == ErrorCode::kUnsafe) {
    // Another folder has the name. The one that this rank holds may have the verdict all the same.
    if (std::optional<Verdict> left = marks_.look_for_verdict()) return left;
    return seen.error();
  }
  const bool is_gone = seen ? !seen->coordinator : seen.error().code() == ErrorCode::kNotFound;
  if (is_gone) return conclude_without_folder();
  if (Clock::now() < next_life_) return std::optional<Verdict>();
  next_life_ = Clock::now() + kLifeInterval;
  const LeaseWatch::Life life = lease_.look(deadlines_);
  if (life == LeaseWatch::Life::kDead) return conclude_from_death();
  const bool is_silent = life == LeaseWatch::Life::kSilent;
  if (!is_silent && life != LeaseWatch::Life::kStuck) return std::optional<Verdict>();
  const std::string why = is_silent ? "gives no sign of life" : "gets nowhere: " + std::string(lease_.stall()->what());
  return Error(ErrorCode::kUnavailable, "the coordinator's writer " + why +
                                            "; whether the save is or will be committed is unknown, look at the "
                                            "directory")
      .rank(save_.coordinator)
      .while_doing("waiting for what " + lease_.holder() + " decides");
}

Result<bool> VerdictWatch::is_in_place() const {
  CAIRN_TRY_ASSIGN(const MetadataInPlace now, read_metadata_in_place(storage_));
  return now.record && now.record->save_id == save_.id;
}

// The coordinator may have died between its rename and its sync.
Verdict VerdictWatch::committed() const {
  Verdict verdict;
  if (save_.durability != Durability::kDurable) return verdict;
  if (auto synced = storage_.sync(); !synced) {
    verdict.failure = std::move(synced).error().while_doing(
        "syncing the directory after the coordinator died right after the commit");
    verdict.files_stay = true;
  }
  return verdict;
}

Result<std::optional<Verdict>> VerdictWatch::conclude_from_death() {
  // Dead, it does nothing any more: what is seen from now on stays so.
  Result<SaveMarks::Seen> seen = marks_.look();
  if (seen && seen->verdict) return std::move(seen->verdict);
  CAIRN_TRY_ASSIGN(const bool in_place, is_in_place());
  Verdict verdict;
  if (in_place) {
    verdict = committed();
  } else {
    std::vector<Error> failures;
    if (seen) {
      for (auto& [rank, failure] : seen->failures) failures.push_back(std::move(failure));
    }
    failures.push_back(Error(ErrorCode::kUnavailable, "the coordinator's writer died before it committed the save")
                           .rank(save_.coordinator)
                           .while_doing("waiting for what " + lease_.holder() + " decides"));
    verdict.failure = Error::of_ranks(std::move(failures));
  }
  // For ranks on other hosts, which could not tell. Whoever comes to the same conclusion first is heard; and who saw
  // the commit in place, before a later save replaced it, is right.
  if (!marks_.leave_verdict(verdict) || !in_place) {
    seen = marks_.look();
    if (seen && seen->verdict) return std::move(seen->verdict);
  }
  return std::optional(std::move(verdict));
}

// The coordinator takes the folder away when all is decided, and does not wait for ever until all have seen how.
Result<std::optional<Verdict>> VerdictWatch::conclude_without_folder() const {
  CAIRN_TRY_ASSIGN(const bool in_place, is_in_place());
  if (in_place) return std::optional(committed());
  Verdict verdict;
  verdict.failure = Error::of_ranks({Error(ErrorCode::kUnavailable,
                                           "the save was given up, or a later one has replaced it already: its "
                                           "private folder is gone, and another checkpoint, or none, is in place")
                                         .rank(save_.coordinator)
                                         .file(marks_.folder())});
  verdict.files_stay = true;  // what there was to withdraw the coordinator has withdrawn
  return std::optional(std::move(verdict));
}

}  // namespace cairn::commit
