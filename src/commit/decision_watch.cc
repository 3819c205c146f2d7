#include "commit/decision_watch.h"

#include <utility>
#include <vector>

#include "commit/save_transaction.h"

namespace cairn::commit {
namespace {

// Every rank of a save lists the folder, and the folder has a lease of each rank.
constexpr std::chrono::milliseconds kListingInterval{500};

}  // namespace

DecisionWatch::DecisionWatch(storage::Storage& storage, SaveMarks& marks, const Save& save,
                             const SaveDeadlines& deadlines)
    : storage_(storage),
      marks_(marks),
      save_(save),
      deadlines_(deadlines),
      lease_(storage, marks.path_of(kLeaseName)) {}

Result<std::optional<Decision>> DecisionWatch::look() {
  if (Clock::now() < next_listing_) return marks_.find_decision();
  next_listing_ = Clock::now() + kListingInterval;
  const Result<SaveMarks::Seen> seen = marks_.look();
  if (seen && seen->decision) return seen->decision;
  if (!seen && seen.error().code() == ErrorCode::kUnsafe) {
    // Another folder has the name. The folder that this rank holds may still have the decision.
    if (std::optional<Decision> left = marks_.find_decision()) return left;
    return seen.error();
  }
  const bool is_gone = seen ? !seen->coordinator : seen.error().code() == ErrorCode::kNotFound;
  if (is_gone) return conclude_without_folder();
  if (Clock::now() < next_liveness_) return std::optional<Decision>();
  next_liveness_ = Clock::now() + kLivenessInterval;
  const LeaseWatch::Liveness liveness = lease_.look(deadlines_);
  if (liveness == LeaseWatch::Liveness::kDead) return conclude_from_death();
  const bool is_silent = liveness == LeaseWatch::Liveness::kSilent;
  if (!is_silent && liveness != LeaseWatch::Liveness::kStuck) return std::optional<Decision>();
  const std::string why =
      is_silent ? "sends no heartbeats any more" : "makes no progress: " + std::string(lease_.stall()->what());
  return Error(ErrorCode::kUnavailable, "the coordinator's writer " + why +
                                            "; it is unknown whether the save is or will be committed, look at the "
                                            "directory")
      .rank(save_.coordinator)
      .while_doing("waiting for what " + lease_.holder() + " decides");
}

Result<bool> DecisionWatch::is_in_place() const {
  CAIRN_TRY_ASSIGN(const MetadataInPlace now, read_metadata_in_place(storage_));
  return now.record && now.record->save_id == save_.id;
}

// The coordinator may have died between its rename and its sync.
Decision DecisionWatch::committed() const {
  Decision decision;
  if (save_.durability != Durability::kDurable) return decision;
  if (auto synced = storage_.sync(); !synced) {
    decision.failure = std::move(synced).error().while_doing(
        "syncing the directory after the coordinator died right after the commit");
    decision.files_stay = true;
  }
  return decision;
}

Result<std::optional<Decision>> DecisionWatch::conclude_from_death() {
  // The coordinator is dead and changes nothing any more: from now on every look is final.
  Result<SaveMarks::Seen> seen = marks_.look();
  if (seen && seen->decision) return std::move(seen->decision);
  CAIRN_TRY_ASSIGN(const bool in_place, is_in_place());
  Decision decision;
  if (in_place) {
    decision = committed();
  } else {
    std::vector<Error> failures;
    if (seen) {
      for (auto& [rank, failure] : seen->failures) failures.push_back(std::move(failure));
    }
    failures.push_back(Error(ErrorCode::kUnavailable, "the coordinator's writer died before it committed the save")
                           .rank(save_.coordinator)
                           .while_doing("waiting for what " + lease_.holder() + " decides"));
    decision.failure = Error::of_ranks(std::move(failures));
  }
  // Leave a mark for ranks on other hosts, which cannot draw the conclusion. The first mark counts, except that
  // `committed` takes precedence: this rank may have seen the commit in place before a later save replaced the
  // checkpoint.
  if (!marks_.write_decision(decision) || !in_place) {
    seen = marks_.look();
    if (seen && seen->decision) return std::move(seen->decision);
  }
  return std::optional(std::move(decision));
}

// The coordinator removes the folder after the decision, and waits only a limited time for ranks to read the decision.
Result<std::optional<Decision>> DecisionWatch::conclude_without_folder() const {
  CAIRN_TRY_ASSIGN(const bool in_place, is_in_place());
  if (in_place) return std::optional(committed());
  Decision decision;
  decision.failure = Error::of_ranks({Error(ErrorCode::kUnavailable,
                                            "the private folder of the save is gone, and the checkpoint in place "
                                            "belongs to a different save, or is missing: the save was given up, or a "
                                            "later save has replaced it")
                                          .rank(save_.coordinator)
                                          .file(marks_.folder())});
  decision.files_stay = true;  // the coordinator has withdrawn everything already
  return std::optional(std::move(decision));
}

}  // namespace cairn::commit
