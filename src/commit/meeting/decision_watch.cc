#include "commit/meeting/decision_watch.h"

#include <utility>
#include <vector>

#include "commit/bucket/closed_lease.h"
#include "commit/directory/new_directory.h"
#include "commit/metadata_in_place.h"

namespace cairn::commit {
namespace {

// A look, at most every kLookIntervalMax, is one call. If the lease was touched, two calls read the lease, and three
// calls look for the marks: with a heartbeat every five seconds, these are at most nine calls in five seconds. The
// tenth is the heartbeat of this rank.
//
// In a bucket, every look but the last is one request. 16,384 ranks with a heartbeat a minute then make fewer than
// 1,000 requests a second.
constexpr std::chrono::seconds kBucketLookMin{2};
constexpr std::chrono::seconds kBucketLookMax{30};
// For a mark without a hint, left by a rank in place of a dead coordinator.
constexpr std::chrono::milliseconds kMarksInterval{10'000};

}  // namespace

DecisionWatch::DecisionWatch(storage::Storage& storage, SaveMarks& marks, const Save& save,
                             const SaveDeadlines& deadlines)
    : storage_(storage),
      marks_(marks),
      save_(save),
      deadlines_(deadlines),
      lease_(storage, marks.path_of(kLeaseName)),
      pace_(storage.has_rename() ? SlowingPace(kLookIntervalMax) : SlowingPace(kBucketLookMax, kBucketLookMin)),
      marks_look_(kMarksInterval) {}

Result<std::optional<Decision>> DecisionWatch::look() {
  using Liveness = LeaseWatch::Liveness;
  if (!pace_.is_due()) {
    if (process_look_.is_due() && lease_.holder_is_dead()) return conclude_from_death();
    return std::optional<Decision>();
  }
  const Liveness liveness = lease_.look(deadlines_);
  if (!storage_.has_rename()) return look_in_bucket(liveness);
  if (liveness == Liveness::kDead) return conclude_from_death();
  if (liveness == Liveness::kAbsent) return look_at_folder();
  const bool was_touched = lease_.was_touched();
  if (was_touched || !pace_.is_slowest() || marks_look_.is_due()) {
    marks_look_.postpone();
    Result<std::optional<Decision>> decision = marks_.find_decision();
    if (!decision) return look_at_folder();
    if (*decision) return decision;
  }
  if (liveness == Liveness::kAlive) return std::optional<Decision>();
  // By the names: all ranks come here at about the same time, on a storage that may hang.
  if (Result<std::optional<Decision>> last_look = marks_.find_decision(); last_look && *last_look) return last_look;
  const std::string why = liveness == Liveness::kSilent ? "sends no heartbeats any more"
                                                        : "makes no progress: " + std::string(lease_.stall()->what());
  return Error(ErrorCode::kUnavailable, "the coordinator's writer " + why +
                                            "; it is unknown whether the save is or will be committed, look at the "
                                            "directory")
      .rank(save_.coordinator)
      .while_doing("waiting for what " + lease_.holder() + " decides");
}

Result<std::optional<Decision>> DecisionWatch::look_at_folder() {
  const Result<SaveMarks::Seen> seen = marks_.look();
  if (seen) return seen->decision || seen->coordinator ? seen->decision : conclude_without_folder();
  if (seen.error().code() == ErrorCode::kNotFound) return conclude_without_folder();
  // kUnsafe: another folder has the name. The folder that this rank holds may still have the decision.
  if (Result<std::optional<Decision>> left = marks_.find_decision(); left && *left) return left;
  if (seen.error().code() == ErrorCode::kUnsafe) return seen.error();
  return std::optional<Decision>();
}

Result<bool> DecisionWatch::is_in_place() const {
  if (!save_.directory_name.empty()) return is_directory_in_place(storage_, {save_.id, save_.directory_name});
  if (storage_.has_rename())
    (void)storage_.touched_at("");  // a network file system may remember that `.metadata` was missing
  CAIRN_TRY_ASSIGN(const MetadataInPlace now, read_metadata_in_place(storage_));
  return now.record && now.record->save_id == save_.id;
}

// The coordinator may have died between its rename and its sync.
Decision DecisionWatch::committed() const {
  Decision decision;
  if (save_.durability != Durability::kDurable) return decision;
  Result<void> synced = storage_.sync();
  if (synced && !save_.directory_name.empty()) {
    const auto parent = storage_.open_parent();
    synced = parent ? (*parent)->sync() : Result<void>(parent.error());
  }
  if (!synced) {
    decision.failure = std::move(synced).error().while_doing(
        "syncing the directory after the coordinator died right after the commit");
    decision.files_stay = true;
  }
  return decision;
}

Result<std::optional<Decision>> DecisionWatch::look_in_bucket(LeaseWatch::Liveness liveness) {
  switch (liveness) {
    case LeaseWatch::Liveness::kAlive:
      return lease_.is_decided() ? marks_.find_decision() : Result<std::optional<Decision>>(std::nullopt);
    case LeaseWatch::Liveness::kAbsent: return conclude_without_folder();  // the marks go before the lease
    case LeaseWatch::Liveness::kDead:
    case LeaseWatch::Liveness::kSilent:
    case LeaseWatch::Liveness::kStuck: return conclude_by_closing();
  }
  return std::optional<Decision>();
}

Result<std::optional<Decision>> DecisionWatch::conclude_by_closing() {
  CAIRN_TRY_ASSIGN(std::optional<Decision> decision, marks_.find_decision());
  if (decision) return decision;
  CAIRN_TRY_ASSIGN(const LeaseClosing closing, close_lease(storage_, marks_.folder()));
  if (!closing.is_closed) return std::optional<Decision>();
  if (!closing.holder) return conclude_without_folder();
  CAIRN_TRY_ASSIGN(Decision concluded, decision_of_closed(closing.holder));
  // For the other ranks. The first mark counts; `committed` takes precedence.
  (void)marks_.write_decision(concluded);
  CAIRN_TRY_ASSIGN(decision, marks_.find_decision());
  return decision ? decision : std::optional(std::move(concluded));
}

Result<Decision> DecisionWatch::decision_of_closed(const std::optional<LeaseHolder>& holder) const {
  CAIRN_TRY_ASSIGN(const ClosedSaveState state, state_of_closed_save(storage_, save_.id, holder));
  Decision decision;
  if (state.what == ClosedSave::kInPlace) return decision;
  const std::string waiting = "waiting for what " + lease_.holder() + " decides";
  if (state.what == ClosedSave::kNotInPlace) {
    decision.failure = Error::of_ranks({Error(ErrorCode::kUnavailable,
                                              "the coordinator's writer has died or is silent, and the save is not in "
                                              "place and can't be committed any more")
                                            .rank(save_.coordinator)
                                            .while_doing(waiting)});
    return decision;
  }
  return Error(ErrorCode::kUnavailable,
               "the coordinator's writer has died or is silent while it committed; it is unknown whether the save is "
               "or will be committed, look at the directory")
      .rank(save_.coordinator)
      .while_doing(waiting);
}

Result<std::optional<Decision>> DecisionWatch::conclude_from_death() {
  if (!storage_.has_rename()) return conclude_by_closing();
  // The coordinator is dead and changes nothing any more: from now on every look is final.
  Result<SaveMarks::Seen> seen = marks_.look();
  if (seen && seen->decision) return std::move(seen->decision);
  if (!seen && seen.error().code() == ErrorCode::kNotFound) return conclude_without_folder();
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
  // The coordinator has withdrawn everything already, except what came later. Where files have final names from the
  // start, this rank withdraws its own: without a lease the save can't be committed any more.
  decision.files_stay = storage_.has_rename();
  return std::optional(std::move(decision));
}

}  // namespace cairn::commit
