// One save by the writers of many ranks that send each other nothing: they meet in the save's private folder.
//
// 1. Claim. The coordinator's writer makes the folder with its lease (step 1 of save_transaction.cc). The ticket goes
// to
//    the other ranks by way of whoever plans.
// 2. Enter. Every other rank leaves `lease-<rank>` in the folder. Nobody makes the folder but the coordinator: who does
//    not find it has been given up, or looks at another directory.
// 3. Write. Every rank writes its files in the folder, and syncs them.
// 4. Publish. It gives them their final names. With that it has said that it is done; if it can't get so far it leaves
//    `failed-<rank>` with the reason. From here on it waits, and withdraws nothing by itself: the coordinator may
//    commit.
// 5. Meet. The coordinator waits until the files of all are there, with this save's id, and takes their sizes and their
//    trailers' checksums: a file has its final name only when it is whole. It stops waiting when a rank has left
//    `failed-<rank>`, is dead, or is silent.
// 6. Commit (steps 4 to 7 of save_transaction.cc), when no earlier save is under way, and no rank has failed meanwhile.
// 7. Tell. Only after the commit is synced the coordinator leaves `committed`; or `failed` with all reasons. A
//    rank that reads it takes its lease away. When no lease of a living rank is left, or after a while, the folder
//    goes; the coordinator then withdraws what a failed save published. A rank withdraws its files only when it has
//    read `failed`.
//
// If the coordinator's process is dead, it will never rename `.metadata` any more. So a rank on its host can conclude:
// if the `.metadata` in place is this save's, the save is committed; otherwise it never will be. It leaves the decision
// in the coordinator's place, and the last to leave removes what lies about. If the coordinator is merely silent,
// nobody can tell, and nothing is withdrawn: the next save cleans up.
#include "commit/rank_save.h"

#include <cassert>
#include <exception>
#include <utility>

#include "commit/save_follower.h"

namespace cairn::commit {

using Phase = ProgressTracker::Phase;

struct RankSave::Impl {
  Impl(std::unique_ptr<storage::Storage> storage, const SaveTicket& ticket, Operations watched)
      : member(std::move(storage), ticket, std::move(watched)) {}

  SaveMember member;
  bool entered = false;
  bool ended = false;
  // One of the two.
  std::optional<SaveCoordinator> coordinator;
  std::optional<SaveFollower> follower;
};

RankSave::RankSave(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RankSave::~RankSave() {
  if (impl_->ended) return;
  try {
    abandon(Error(ErrorCode::kCancelled, "the save was given up before it had ended"));
  } catch (const std::exception&) {
    // No memory even for names: to the others this rank is silent, and the next save finds what is left.
  }
}

const SaveTicket& RankSave::ticket() const { return impl_->member.ticket; }
ProgressReport RankSave::progress() const { return impl_->member.report()(); }

Result<std::unique_ptr<RankSave>> RankSave::claim(std::unique_ptr<storage::Storage> storage,
                                                  const SaveIdentity& identity, std::uint32_t rank,
                                                  const ClaimOptions& options, Operations operations) {
  auto impl = std::make_unique<Impl>(std::move(storage), SaveTicket{identity, false}, std::move(operations));
  SaveMember& member = impl->member;
  CAIRN_TRY_ASSIGN(auto transaction,
                   SaveTransaction::claim(*member.storage, identity, options, member.report()));  // (1)
  transaction->keep_folder();
  member.place.rank = rank;
  member.ticket = transaction->ticket();
  impl->coordinator.emplace(member, std::move(transaction));
  return std::unique_ptr<RankSave>(new RankSave(std::move(impl)));
}

std::unique_ptr<RankSave> RankSave::join(std::unique_ptr<storage::Storage> storage, const SaveTicket& ticket,
                                         Operations operations) {
  auto impl = std::make_unique<Impl>(std::move(storage), ticket, std::move(operations));
  impl->follower.emplace(impl->member);
  return std::unique_ptr<RankSave>(new RankSave(std::move(impl)));
}

Result<void> RankSave::enter(const RankPlace& place) {
  if (impl_->entered) return {};
  assert(impl_->coordinator.has_value() == place.is_coordinator());
  impl_->member.place = place;
  if (impl_->follower) {
    if (auto taken = impl_->follower->take_lease(); !taken) {  // (2)
      // A folder that is not this user's is not the coordinator's: no rank would read the mark.
      if (taken.error().code() != ErrorCode::kUnsafe)
        (void)impl_->member.marks.write_failure(place.rank, taken.error());
      return taken;
    }
  }
  impl_->entered = true;
  return {};
}

Result<RankSaveReport> RankSave::finish(std::vector<data_file::ImageFile> files,
                                        const std::optional<CommitRequest>& commit_request,
                                        const RankSaveOptions& options,
                                        const std::function<Result<void>()>& may_commit) {
  assert(impl_->entered && !impl_->ended);
  std::uint64_t bytes = 0;
  for (const data_file::ImageFile& file : files) bytes += file.image->file_bytes();
  impl_->member.progress.bytes_total = bytes;
  impl_->member.fence = options.fence;
  Result<RankSaveReport> report = Error(ErrorCode::kInternal, "the coordinator was not told what to commit");
  if (impl_->follower) {
    report = impl_->follower->follow(std::move(files), options);
  } else if (commit_request) {
    report = impl_->coordinator->lead(std::move(files), *commit_request, options, may_commit);
  } else {
    impl_->coordinator->give_up_all(report.error());
  }
  impl_->ended = true;
  impl_->member.progress.phase = Phase::kEnded;
  return report;
}

void RankSave::abandon(const Error& reason) {
  if (std::exchange(impl_->ended, true)) return;
  if (impl_->coordinator) impl_->coordinator->give_up_all(reason);
  if (impl_->follower) impl_->follower->give_up(reason);
  impl_->member.progress.phase = Phase::kEnded;
}

}  // namespace cairn::commit
