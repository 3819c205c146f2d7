#include "commit/meeting/save_follower.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "commit/directory/new_directory.h"
#include "commit/leftovers.h"
#include "commit/meeting/periodic.h"
#include "core/attempt.h"
#include "storage/backoff.h"

namespace cairn::commit {
namespace {

using Clock = std::chrono::steady_clock;
using Phase = ProgressTracker::Phase;

// How long an entering rank looks for the folder: network file systems cache missing names.
constexpr std::chrono::seconds kFolderVisibleAfterMax{3};

}  // namespace

// Step 2.
Result<void> SaveFollower::take_lease(bool has_files) {
  // A rank that was given up must not agree: the coordinator could commit a save that this rank has reported as failed.
  if (!has_files && member_.fence != nullptr) {
    if (Result<void> begun = member_.fence->begin_decisive_step(); !begun) {
      CAIRN_TRY(member_.storage->join_folder(member_.marks.folder()));  // the caller reports the failure in the folder
      return std::move(begun).error().rank(member_.place.rank);
    }
  }
  const Clock::time_point start = Clock::now();
  for (storage::Backoff backoff;; backoff.pause()) {
    Result<Lease> taken =
        Lease::take_as_rank(*member_.storage, member_.ticket.identity, member_.place.rank, member_.report());
    if (taken) {
      lease_ = std::move(*taken);
      return {};
    }
    if (taken.error().code() != ErrorCode::kNotFound) return std::move(taken).error().rank(member_.place.rank);
    if (Clock::now() - start > kFolderVisibleAfterMax) {
      return Error(
                 ErrorCode::kUnavailable,
                 "no private folder of the save: the coordinator has given up, or this rank has a different directory "
                 "mounted; asynchronous saves need a directory common to all ranks")
          .rank(member_.place.rank)
          .file(member_.marks.folder());
    }
    if (member_.storage->has_rename()) (void)member_.storage->touched_at("");  // a network file system then finds names
  }
}

Result<RankSaveReport> SaveFollower::follow(std::vector<data_file::ImageFile> images, const RankSaveOptions& options) {
  DecisionWatch watch(
      *member_.storage, member_.marks,
      {member_.ticket.identity.save_id, member_.place.coordinator, options.write.durability, member_.directory_name},
      options.deadlines);
  const auto& interrupted = options.write.interrupted;
  Result<std::optional<Decision>> decision{std::optional<Decision>()};
  const auto is_decided = [&] { return !decision || decision->has_value(); };
  Periodic news(kLivenessInterval);
  bool is_interrupted = false;
  bool is_stopped = false;  // the write, because the save is decided or no decision can be read
  data_file::WriteOptions write_options = options.write;
  write_options.interrupted = [&] {
    if (news.is_due()) decision = watch.look();
    is_interrupted = interrupted && interrupted();
    is_stopped = is_decided();
    return is_interrupted || is_stopped;
  };
  Result<std::vector<std::uint32_t>> trailers =
      attempt([&] { return member_.write(std::move(images), write_options); });  // (3, 4)
  if (!trailers && !is_decided()) {
    member_.remove_private_files();
    (void)member_.marks.write_failure(member_.place.rank, trailers.error());
  }
  member_.progress.phase = Phase::kWaiting;
  watch.note_waiting();
  for (storage::Backoff backoff; !is_decided() && !is_interrupted; backoff.pause()) {  // (7)
    decision = attempt([&] { return watch.look(); });
    is_interrupted = interrupted && interrupted();
  }
  if (!is_decided()) {
    const Error error(
        ErrorCode::kCancelled,
        "interrupted while waiting for the coordinator; the save fails unless the commit was already made");
    if (trailers) (void)member_.marks.write_failure(member_.place.rank, error);
    leave();
    return member_.of_this_rank(trailers ? error : std::move(trailers).error());
  }
  // Without this rank's files nothing was committed, even if no decision can be read. A write that was stopped because
  // none can be read has no reason of its own.
  if (!decision && !trailers && !is_stopped) decision = member_.of_this_rank(std::move(trailers).error());
  return conclude(decision, watch);
}

Result<RankSaveReport> SaveFollower::conclude(const Result<std::optional<Decision>>& decision, DecisionWatch& watch) {
  if (decision && !(*decision)->failure && member_.fence != nullptr) member_.fence->note_committed();
  if (decision && (*decision)->failure && !(*decision)->files_stay) member_.files.withdraw();
  leave();
  // After a failed sync the old checkpoint may come back, and needs its files. The sync is not repeated: a second sync
  // may succeed although data was lost.
  const bool both_stay = decision && (*decision)->files_stay;
  // In a bucket the next save cleans up: a listing by each of many ranks costs too much.
  if (!both_stay && member_.storage->has_rename() && watch.coordinator_is_dead()) clean_up();
  if (!decision) return member_.of_this_rank(decision.error());
  if ((*decision)->failure) return *(*decision)->failure;
  return RankSaveReport{member_.progress.bytes_written, (*decision)->warnings};
}

// In place of a dead coordinator.
void SaveFollower::clean_up() {
  const SaveId& save_id = member_.ticket.identity.save_id;
  (void)clean_up_after(*member_.storage, save_id);
  if (member_.directory_name.empty()) return;
  if (const auto parent = member_.storage->open_parent()) {
    (void)clean_up_after_directory(**parent, {save_id, member_.directory_name});
  }
}

void SaveFollower::give_up(const Error& reason) {
  if (!lease_) return;
  (void)member_.marks.write_failure(member_.place.rank, reason);
  leave();
}

void SaveFollower::leave() {
  lease_.reset();
  // The coordinator waits for the removal: a failed removal is tried once more.
  const std::string name = member_.marks.path_of(rank_lease_name(member_.place.rank));
  if (!member_.storage->remove(name)) (void)member_.storage->remove(name);
}

}  // namespace cairn::commit
