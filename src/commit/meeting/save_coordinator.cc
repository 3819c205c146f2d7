#include "commit/meeting/save_coordinator.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "commit/meeting/rank_rendezvous.h"
#include "commit/meeting/save_marks.h"
#include "commit/meeting/slowing_pace.h"
#include "core/attempt.h"
#include "storage/backoff.h"

namespace cairn::commit {
namespace {

using Clock = std::chrono::steady_clock;
using Phase = ProgressTracker::Phase;

// On a full disk a decision finds space once the other ranks have removed the private files of the failed save.
constexpr std::chrono::seconds kRoomForDecisionMax{5};
// The longest interval between two looks for failures of other ranks while this rank writes.
constexpr std::chrono::seconds kNewsInterval{1};
constexpr std::chrono::seconds kBucketNewsInterval{10};
constexpr std::chrono::seconds kBucketNewsMin{2};

Result<void> check_sizes(const std::vector<RankRendezvous::Files>& all, const CommitRequest& request) {
  for (std::size_t rank = 0; rank < request.sizes.size(); ++rank) {
    for (std::size_t i = 0; i < all[rank].size(); ++i) {
      if (all[rank][i].size == request.sizes[rank][i]) continue;
      return Error(ErrorCode::kCorrupt, "the file of a rank has another size than the rank has laid out")
          .file(all[rank][i].name)
          .rank(static_cast<std::int64_t>(rank))
          .expected(std::to_string(request.sizes[rank][i]) + " bytes")
          .actual(std::to_string(all[rank][i].size) + " bytes");
    }
  }
  return {};
}

}  // namespace

Result<RankSaveReport> SaveCoordinator::lead(std::vector<data_file::ImageFile> images,
                                             const CommitRequest& commit_request, const RankSaveOptions& options,
                                             const std::function<Result<void>()>& may_commit) {
  std::vector<std::string> all_names;
  for (const auto& of_rank : commit_request.files) all_names.insert(all_names.end(), of_rank.begin(), of_rank.end());
  transaction_->expect(std::move(all_names));
  Result<CommitReport> committed =
      attempt([&] { return write_meet_commit(std::move(images), commit_request, options, may_commit); });
  Decision decision;  // (7)
  if (committed) {
    decision.warnings = committed->warnings;
  } else {
    decision.failure = member_.of_this_rank(std::move(committed).error());
    decision.files_stay = transaction_->may_have_committed();
  }
  // The decision is final, whatever exception follows. A rank that does not get the decision reads the `.metadata` in
  // place once the folder is gone.
  const bool is_told = member_.place.count == 1 || attempt([&] { return tell(decision, options); });
  // In a bucket the lease tells a later save that the outcome is unknown.
  const bool is_visible = decision.files_stay && member_.storage->has_rename();
  if (!decision.failure || (is_visible && !is_told)) {
    (void)attempt([&]() -> Result<void> {
      transaction_->remove_folder(decision.warnings);
      return {};
    });
  }
  transaction_.reset();  // withdraws everything that was not committed
  if (decision.failure) return *std::move(decision.failure);
  return RankSaveReport{member_.progress.bytes_written + metadata_bytes_, std::move(decision.warnings)};
}

Result<CommitReport> SaveCoordinator::write_meet_commit(std::vector<data_file::ImageFile> images,
                                                        const CommitRequest& commit_request,
                                                        const RankSaveOptions& options,
                                                        const std::function<Result<void>()>& may_commit) {
  const std::uint32_t mine = member_.place.count == 1 ? 0 : member_.place.rank;
  RankRendezvous::Files own;
  own.reserve(images.size());
  for (const data_file::ImageFile& image : images) own.push_back({image.name, image.image->file_bytes(), 0});
  const auto has_name = [](const manifest::CommitRecord::File& file, const std::string& name) {
    return file.name == name;
  };
  const bool has_sizes = !commit_request.sizes.empty();
  if ((has_sizes && commit_request.sizes.size() != commit_request.files.size()) ||
      commit_request.files.size() != member_.place.count ||
      !std::equal(own.begin(), own.end(), commit_request.files[mine].begin(), commit_request.files[mine].end(),
                  has_name)) {
    return Error(ErrorCode::kInternal, "the files to commit differ from the files assigned to the ranks");
  }
  RankRendezvous rendezvous(*member_.storage, member_.marks, member_.ticket.identity, options.deadlines);
  const auto& interrupted = options.write.interrupted;
  std::vector<Error> failures;
  SlowingPace news =
      member_.storage->has_rename() ? SlowingPace(kNewsInterval) : SlowingPace(kBucketNewsInterval, kBucketNewsMin);
  data_file::WriteOptions write_options = options.write;
  write_options.interrupted = [&] {
    if (member_.place.count > 1 && news.is_due()) failures = rendezvous.failures_if_hinted();
    return !failures.empty() || (interrupted && interrupted());
  };
  Result<std::vector<std::uint32_t>> trailers =
      attempt([&] { return member_.write(std::move(images), write_options); });  // (3, 4)
  if (!failures.empty()) return Error::of_ranks(std::move(failures));
  if (!trailers) {
    member_.remove_private_files();
    if (member_.place.count == 1) return std::move(trailers).error();
    failures = rendezvous.failures();
    failures.push_back(std::move(trailers).error().rank(member_.place.rank));
    return Error::of_ranks(std::move(failures));
  }
  member_.progress.phase = Phase::kWaiting;
  CAIRN_TRY_ASSIGN(const std::string pickle, commit_request.render());  // while the other ranks still write
  metadata_bytes_ = pickle.size();
  CAIRN_TRY_ASSIGN(std::vector<RankRendezvous::Files> all,
                   rendezvous.wait_for_files(commit_request.files, mine, interrupted));  // (5)
  for (std::size_t i = 0; i < own.size(); ++i) own[i].trailer_checksum = (*trailers)[i];
  all[mine] = std::move(own);
  CAIRN_TRY(check_sizes(all, commit_request));
  member_.progress.phase = Phase::kCommitting;
  if (may_commit) CAIRN_TRY(may_commit());  // (6)
  failures = rendezvous.failures();
  if (!failures.empty()) return Error::of_ranks(std::move(failures));
  if (interrupted && interrupted()) return Error(ErrorCode::kCancelled, "interrupted while waiting for earlier saves");
  manifest::CommitRecord record;
  for (RankRendezvous::Files& of_rank : all) {
    record.files.insert(record.files.end(), of_rank.begin(), of_rank.end());
  }
  record.plan = commit_request.plan;
  transaction_->set_fence(member_.fence);
  return transaction_->commit(pickle, std::move(record), options.write.durability);
}

// Step 7.
Result<void> SaveCoordinator::tell(const Decision& decision, const RankSaveOptions& options) {
  member_.progress.phase = Phase::kWaiting;  // waiting for other ranks is not a hang of this rank
  const Clock::time_point start = Clock::now();
  for (storage::Backoff backoff;; backoff.pause()) {
    Result<void> left = member_.marks.write_decision(decision);
    if (left) {
      member_.marks.hint_at_decision();
      break;
    }
    if (left.error().code() != ErrorCode::kNoSpace || Clock::now() - start > kRoomForDecisionMax) return left;
  }
  const RankRendezvous rendezvous(*member_.storage, member_.marks, member_.ticket.identity, options.deadlines);
  rendezvous.wait_until_heard(options.write.interrupted, decision.failure ? member_.place.count - 1 : 0);
  return {};
}

void SaveCoordinator::give_up_all(const Error& reason) {
  transaction_->expect_any();  // ranks may have published before the coordinator knew the names
  const Result<SaveMarks::Seen> seen = member_.marks.look();
  if (seen && !seen->leases.empty()) {
    RankRendezvous rendezvous(*member_.storage, member_.marks, member_.ticket.identity, SaveDeadlines());
    std::vector<Error> failures = rendezvous.failures();
    failures.push_back(Error(reason).rank(member_.place.rank));
    // abandon() may follow a commit, if finish() ran out of memory.
    const Decision decision{Error::of_ranks(std::move(failures)), transaction_->may_have_committed()};
    if (member_.marks.write_decision(decision)) {
      member_.marks.hint_at_decision();
      rendezvous.wait_until_heard({});
    }
  }
  transaction_.reset();
}

}  // namespace cairn::commit
