// A save by the writers of many ranks, which send no messages: the writers meet in the save's private folder.
//
// 1. Claim. The coordinator's writer makes the folder with its lease (step 1 of save_transaction.cc). The trainers send
//    the ticket to the other ranks while planning.
// 2. Enter. Every other rank leaves `lease-<rank>` in the folder. Only the coordinator makes the folder: a rank without
//    the folder has been given up, or sees a different directory. A rank without files agrees to the commit by its
//    lease: from here on the rank withdraws nothing by itself.
// 3. Write. Every rank writes its files in the folder, and syncs the files.
// 4. Publish. The rank renames its files to their final names. The final names are the rank's report of success. A rank
//    that fails before leaves the hint `failure`, and `failed-<rank>` with the reason. From here on the rank waits,
//    and withdraws nothing by itself: the coordinator may commit.
// 5. Meet. The coordinator waits until the files of all ranks are in place, with this save's id, and reads the files'
//    sizes and trailer checksums: a file has its final name only when the file is complete. The coordinator also waits
//    for the lease of each rank without files: a later rank would not find the folder any more. The coordinator stops
//    waiting when a rank has left `failed-<rank>`, is dead, or is silent. Each look asks for the first missing rank,
//    for a part of the others in turn, and for the hint `failure`.
// 6. Commit (steps 4 to 7 of save_transaction.cc), once no earlier save is in flight, and if no rank has failed
//    meanwhile.
// 7. Tell. After the commit is synced, and not before, the coordinator leaves `committed`; or `failed` with all
//    reasons. The coordinator then touches its lease as a hint: a waiting rank looks at one file only, the lease. A
//    rank that has read the mark removes its own lease. When no living rank has a lease any more, or after a limited
//    time, the coordinator removes the folder, and withdraws the published files of a failed save. A rank withdraws its
//    files only after reading `failed`.
//
// If the coordinator's process is dead, `.metadata` will not be renamed any more. A rank on the coordinator's host can
// then conclude: if the `.metadata` in place is this save's, the save is committed; otherwise the save will never be
// committed. Of a save of a whole directory, the record of the directory at the name tells the same. The rank leaves
// the decision in the coordinator's place, and the last rank to leave removes the leftovers. If the coordinator is
// merely silent, no rank can tell whether the save is committed, and nothing is withdrawn: the next save cleans up.
#include "commit/meeting/rank_save.h"

#include <cassert>
#include <exception>
#include <utility>

#include "commit/directory/directory_commit.h"
#include "commit/meeting/save_follower.h"

namespace cairn::commit {

using Phase = ProgressTracker::Phase;

struct RankSave::Impl {
  Impl(std::unique_ptr<storage::Storage> storage, const SaveTicket& ticket, Operations watched,
       std::string directory_name)
      : member(std::move(storage), ticket, std::move(watched), std::move(directory_name)) {}

  SaveMember member;
  bool entered = false;
  bool ended = false;
  // Exactly one of the two is set.
  std::optional<SaveCoordinator> coordinator;
  std::optional<SaveFollower> follower;
};

RankSave::RankSave(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RankSave::~RankSave() {
  if (impl_->ended) return;
  try {
    abandon(Error(ErrorCode::kCancelled, "the save was given up before it had ended"));
  } catch (const std::exception&) {
    // Out of memory: the other ranks see a silent rank, and the next save removes the leftovers.
  }
}

const SaveTicket& RankSave::ticket() const { return impl_->member.ticket; }
ProgressReport RankSave::progress() const { return impl_->member.report()(); }

Result<std::unique_ptr<RankSave>> RankSave::claim(std::unique_ptr<storage::Storage> storage,
                                                  const SaveIdentity& identity, std::uint32_t rank,
                                                  const ClaimOptions& options, Operations operations) {
  auto impl = std::make_unique<Impl>(std::move(storage), SaveTicket{identity, false}, std::move(operations),
                                     options.directory_name);
  SaveMember& member = impl->member;
  CAIRN_TRY_ASSIGN(
      auto transaction,
      identity.form == SaveForm::kDirectory
          ? claim_directory(*member.storage, identity, {options.directory_name, options.overwrite}, member.report())
          : claim_checkpoint(*member.storage, identity, options, member.report()));  // (1)
  transaction->keep_folder();
  member.place.rank = rank;
  member.ticket = transaction->ticket();
  impl->coordinator.emplace(member, std::move(transaction));
  return std::unique_ptr<RankSave>(new RankSave(std::move(impl)));
}

std::unique_ptr<RankSave> RankSave::join(std::unique_ptr<storage::Storage> storage, const SaveTicket& ticket,
                                         Operations operations, std::string directory_name) {
  auto impl = std::make_unique<Impl>(std::move(storage), ticket, std::move(operations), std::move(directory_name));
  impl->follower.emplace(impl->member);
  return std::unique_ptr<RankSave>(new RankSave(std::move(impl)));
}

Result<void> RankSave::enter(const RankPlace& place, const EnterOptions& options) {
  if (impl_->entered) return {};
  assert(impl_->coordinator.has_value() == place.is_coordinator());
  impl_->member.place = place;
  impl_->member.fence = options.fence;
  if (impl_->follower) {
    if (auto taken = impl_->follower->take_lease(options.has_files); !taken) {  // (2)
      // A folder of another user is not the coordinator's folder: no rank would read the mark.
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
  impl_->member.written = options.written;
  Result<RankSaveReport> report = Error(ErrorCode::kInternal, "the coordinator has no commit plan");
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

void RankSave::fail_before_entry(const RankPlace& place, const Error& reason) {
  assert(!impl_->entered && impl_->follower);
  if (std::exchange(impl_->ended, true)) return;
  impl_->member.place = place;
  (void)impl_->member.marks.write_failure(place.rank, reason);
  impl_->member.progress.phase = Phase::kEnded;
}

void RankSave::abandon(const Error& reason) {
  if (std::exchange(impl_->ended, true)) return;
  if (impl_->coordinator) impl_->coordinator->give_up_all(reason);
  if (impl_->follower) impl_->follower->give_up(reason);
  impl_->member.progress.phase = Phase::kEnded;
}

}  // namespace cairn::commit
