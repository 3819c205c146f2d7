// One save by the writers of many ranks that send each other nothing: they meet in the save's private folder.
//
// 1. Claim. The coordinator's writer makes the folder with its lease (step 1 of commit.cc). The ticket goes to
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
// 6. Commit (steps 4 to 7 of commit.cc), when no earlier save is under way, and no rank has failed meanwhile.
// 7. Tell. Only after the commit is synced the coordinator leaves `committed`; or `failed` with all reasons. A
//    rank that reads it takes its lease away. When no lease of a living rank is left, or after a while, the folder
//    goes; the coordinator then withdraws what a failed save published. A rank withdraws its files only when it has
//    read `failed`.
//
// If the coordinator's process is dead, it will never rename `.metadata` any more. So a rank on its host can conclude:
// if the `.metadata` in place is this save's, the save is committed; otherwise it never will be. It leaves the verdict
// in the coordinator's place, and the last to leave removes what lies about. If the coordinator is merely silent,
// nobody can tell, and nothing is withdrawn: the next save cleans up.
#include "transfer/rank_save.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <utility>

#include "core/attempt.h"
#include "transfer/backoff.h"
#include "transfer/leftovers.h"
#include "transfer/rank_files.h"
#include "transfer/save_marks.h"
#include "transfer/verdict_watch.h"

namespace cairn::transfer {
namespace {

using Clock = std::chrono::steady_clock;
using Phase = SaveProgress::Phase;

// How long a rank that enters looks for the folder: network file systems remember for a while what was not there.
constexpr std::chrono::seconds kFolderVisibleAfterMax{3};
// On a full disk there is room for a verdict when the other ranks have removed what they wrote in vain.
constexpr std::chrono::seconds kRoomForVerdictMax{5};
// While a rank writes, it looks this often whether the save has failed elsewhere.
constexpr std::chrono::milliseconds kNewsInterval{100};

// True every now and then.
class NowAndThen {
 public:
  bool is_due() {
    if (Clock::now() < next_) return false;
    next_ = Clock::now() + kNewsInterval;
    return true;
  }

 private:
  Clock::time_point next_ = Clock::now() + kNewsInterval;
};

Error cancelled(const char* during) { return Error(ErrorCode::kCancelled, std::string("interrupted while ") + during); }

}  // namespace

struct RankSave::Impl {
  Impl(std::unique_ptr<storage::Storage> taken_storage, const SaveTicket& given_ticket, Operations watched)
      : storage(std::move(taken_storage)),
        operations(std::move(watched)),
        ticket(given_ticket),
        marks(*storage, ticket.identity.save_id),
        files(*storage, ticket.identity, RankFiles::Folder::kShared) {
    files.hand_over();
  }

  // Coordinator.
  Result<RankSaveReport> lead(std::vector<ImageFile> images, const CommitDuty& duty, const RankSaveOptions& options,
                              const std::function<Result<void>()>& may_commit);
  Result<CommitReport> write_meet_commit(std::vector<ImageFile> images, const CommitDuty& duty,
                                         const RankSaveOptions& options,
                                         const std::function<Result<void>()>& may_commit);
  Result<void> tell(const Verdict& verdict, const RankSaveOptions& options);
  void give_up_all(const Error& reason);
  // Any other rank.
  Result<void> take_lease();
  Result<RankSaveReport> follow(std::vector<ImageFile> images, const RankSaveOptions& options);
  Result<RankSaveReport> conclude(const Result<std::optional<Verdict>>& verdict, VerdictWatch& watch);
  void leave();
  // Both.
  Result<std::vector<std::uint32_t>> write(std::vector<ImageFile> images, const WriteOptions& options);
  void remove_private_files();
  Error of_this_rank(Error error) const;

  // For a lease, which goes before the rest of this object.
  Lease::Progress report() const {
    return [this] { return progress.report(operations.get()); };
  }

  std::unique_ptr<storage::Storage> storage;
  Operations operations;
  SaveTicket ticket;
  SaveProgress progress;
  RankPlace place;
  SaveFate* fate = nullptr;  // the caller's
  bool entered = false;
  bool ended = false;
  SaveMarks marks;
  RankFiles files;
  std::vector<std::string> names;                // of the files of this rank
  std::optional<Lease> lease;                    // but the coordinator's, which the transaction has
  std::unique_ptr<SaveTransaction> transaction;  // the coordinator's
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

const SaveTicket& RankSave::ticket() const { return impl_->ticket; }
ProgressReport RankSave::progress() const { return impl_->report()(); }

Result<std::unique_ptr<RankSave>> RankSave::claim(std::unique_ptr<storage::Storage> storage,
                                                  const SaveIdentity& identity, std::uint32_t rank,
                                                  const ClaimOptions& options, Operations operations) {
  auto impl = std::make_unique<Impl>(std::move(storage), SaveTicket{identity, false}, std::move(operations));
  CAIRN_TRY_ASSIGN(impl->transaction,
                   SaveTransaction::claim(*impl->storage, identity, options, impl->report()));  // (1)
  impl->transaction->keep_folder();
  impl->place.rank = rank;
  impl->ticket = impl->transaction->ticket();
  return std::unique_ptr<RankSave>(new RankSave(std::move(impl)));
}

std::unique_ptr<RankSave> RankSave::join(std::unique_ptr<storage::Storage> storage, const SaveTicket& ticket,
                                         Operations operations) {
  auto impl = std::make_unique<Impl>(std::move(storage), ticket, std::move(operations));
  return std::unique_ptr<RankSave>(new RankSave(std::move(impl)));
}

Result<void> RankSave::enter(const RankPlace& place) {
  if (impl_->entered) return {};
  assert((impl_->transaction != nullptr) == place.is_coordinator());
  impl_->place = place;
  if (!place.is_coordinator()) {
    if (auto taken = impl_->take_lease(); !taken) {
      // A folder that is not this user's is not the coordinator's: no rank would read the mark.
      if (taken.error().code() != ErrorCode::kUnsafe) (void)impl_->marks.leave_failure(place.rank, taken.error());
      return taken;
    }
  }
  impl_->entered = true;
  return {};
}

// Step 2.
Result<void> RankSave::Impl::take_lease() {
  const Clock::time_point start = Clock::now();
  for (Backoff backoff;; backoff.pause()) {
    Result<Lease> taken = Lease::take_as_rank(*storage, ticket.identity, place.rank, report());
    if (taken) {
      lease = std::move(*taken);
      return {};
    }
    if (taken.error().code() != ErrorCode::kNotFound) return std::move(taken).error().rank(place.rank);
    if (Clock::now() - start > kFolderVisibleAfterMax) {
      return Error(ErrorCode::kUnavailable,
                   "the save's private folder is not there: the coordinator has given up, or this rank sees another "
                   "directory; in an asynchronous save all ranks need one that all see")
          .rank(place.rank)
          .file(marks.folder());
    }
    (void)storage->list();  // makes a network file system look again
  }
}

Result<RankSaveReport> RankSave::finish(std::vector<ImageFile> files, const std::optional<CommitDuty>& duty,
                                        const RankSaveOptions& options,
                                        const std::function<Result<void>()>& may_commit) {
  assert(impl_->entered && !impl_->ended);
  std::uint64_t bytes = 0;
  for (const ImageFile& file : files) bytes += file.image->file_bytes();
  impl_->progress.bytes_total = bytes;
  impl_->fate = options.fate;
  Result<RankSaveReport> report = Error(ErrorCode::kInternal, "the coordinator was not told what to commit");
  if (!impl_->place.is_coordinator()) {
    report = impl_->follow(std::move(files), options);
  } else if (duty) {
    report = impl_->lead(std::move(files), *duty, options, may_commit);
  } else {
    impl_->give_up_all(report.error());
  }
  impl_->ended = true;
  impl_->progress.phase = Phase::kEnded;
  return report;
}

void RankSave::abandon(const Error& reason) {
  if (std::exchange(impl_->ended, true)) return;
  if (impl_->transaction) impl_->give_up_all(reason);
  if (impl_->lease) {
    (void)impl_->marks.leave_failure(impl_->place.rank, reason);
    impl_->leave();
  }
  impl_->progress.phase = Phase::kEnded;
}

// Steps 3 and 4.
Result<std::vector<std::uint32_t>> RankSave::Impl::write(std::vector<ImageFile> images, const WriteOptions& options) {
  progress.phase = Phase::kWriting;
  for (ImageFile& image : images) {
    names.push_back(image.name);
    CAIRN_TRY_ASSIGN(image.name, files.private_name(image.name));
  }
  WriteOptions counted = options;
  counted.bytes_written = &progress.bytes_written;
  CAIRN_TRY_ASSIGN(std::vector<std::uint32_t> trailers, write_images(*storage, images, counted));
  progress.phase = Phase::kPublishing;
  // With its last file in place this rank has agreed to the commit, unless it commits itself.
  if (!place.is_coordinator() && fate != nullptr) CAIRN_TRY(fate->begin_decisive_step());
  CAIRN_TRY(files.publish(names, options.durability));
  return trailers;
}

// Of no use any more; and a full disk has room again to say so.
void RankSave::Impl::remove_private_files() {
  for (const std::string& name : names) (void)storage->remove(marks.path_of(name));
}

Error RankSave::Impl::of_this_rank(Error error) const {
  if (place.count == 1 || !error.causes().empty()) return error;
  return Error::of_ranks({std::move(error).rank(place.rank)});
}

Result<RankSaveReport> RankSave::Impl::lead(std::vector<ImageFile> images, const CommitDuty& duty,
                                            const RankSaveOptions& options,
                                            const std::function<Result<void>()>& may_commit) {
  std::vector<std::string> all_names;
  for (const auto& of_rank : duty.files) all_names.insert(all_names.end(), of_rank.begin(), of_rank.end());
  transaction->expect(std::move(all_names));
  Result<CommitReport> committed =
      attempt([&] { return write_meet_commit(std::move(images), duty, options, may_commit); });
  Verdict verdict;  // (7)
  if (committed) {
    verdict.warnings = committed->warnings;
  } else {
    verdict.failure = of_this_rank(std::move(committed).error());
    verdict.files_stay = transaction->may_have_committed();
  }
  // What is decided stays so whatever is thrown from here on: who is not told looks at what is in place, once the
  // folder is gone.
  const bool told = place.count == 1 || attempt([&] { return tell(verdict, options); });
  if (!verdict.failure || (verdict.files_stay && !told)) {
    (void)attempt([&]() -> Result<void> {
      transaction->remove_folder(verdict.warnings);
      return {};
    });
  }
  transaction.reset();  // withdraws what did not come to a commit
  if (verdict.failure) return *std::move(verdict.failure);
  return RankSaveReport{progress.bytes_written + duty.pickle.size(), std::move(verdict.warnings)};
}

Result<CommitReport> RankSave::Impl::write_meet_commit(std::vector<ImageFile> images, const CommitDuty& duty,
                                                       const RankSaveOptions& options,
                                                       const std::function<Result<void>()>& may_commit) {
  const std::uint32_t mine = place.count == 1 ? 0 : place.rank;
  RankMeeting::Files own;
  own.reserve(images.size());
  for (const ImageFile& image : images) own.push_back({image.name, image.image->file_bytes(), 0});
  const auto has_name = [](const manifest::CommitRecord::File& file, const std::string& name) {
    return file.name == name;
  };
  if (duty.files.size() != place.count ||
      !std::equal(own.begin(), own.end(), duty.files[mine].begin(), duty.files[mine].end(), has_name)) {
    return Error(ErrorCode::kInternal, "the files to commit are not those that the ranks were to write");
  }
  RankMeeting meeting(*storage, marks, ticket.identity.save_id, options.deadlines);
  const auto& interrupted = options.write.interrupted;
  std::vector<Error> failures;
  NowAndThen news;
  WriteOptions write_options = options.write;
  write_options.interrupted = [&] {
    if (place.count > 1 && news.is_due()) failures = meeting.failures();
    return !failures.empty() || (interrupted && interrupted());
  };
  Result<std::vector<std::uint32_t>> trailers =
      attempt([&] { return write(std::move(images), write_options); });  // (3, 4)
  if (!failures.empty()) return Error::of_ranks(std::move(failures));
  if (!trailers) {
    remove_private_files();
    if (place.count == 1) return std::move(trailers).error();
    failures = meeting.failures();
    failures.push_back(std::move(trailers).error().rank(place.rank));
    return Error::of_ranks(std::move(failures));
  }
  progress.phase = Phase::kWaiting;
  CAIRN_TRY_ASSIGN(std::vector<RankMeeting::Files> all, meeting.wait_for_files(duty.files, mine, interrupted));  // (5)
  for (std::size_t i = 0; i < own.size(); ++i) own[i].trailer_checksum = (*trailers)[i];
  all[mine] = std::move(own);
  progress.phase = Phase::kCommitting;
  if (may_commit) CAIRN_TRY(may_commit());  // (6)
  failures = meeting.failures();
  if (!failures.empty()) return Error::of_ranks(std::move(failures));
  if (interrupted && interrupted()) return cancelled("waiting for earlier saves");
  manifest::CommitRecord record;
  for (RankMeeting::Files& of_rank : all) {
    record.files.insert(record.files.end(), of_rank.begin(), of_rank.end());
  }
  transaction->decide_by(fate);
  return transaction->commit(duty.pickle, std::move(record), options.write.durability);
}

// Step 7.
Result<void> RankSave::Impl::tell(const Verdict& verdict, const RankSaveOptions& options) {
  progress.phase = Phase::kWaiting;  // whatever others do now, this rank does not hang
  const Clock::time_point start = Clock::now();
  for (Backoff backoff;; backoff.pause()) {
    Result<void> left = marks.leave_verdict(verdict);
    if (left) break;
    if (left.error().code() != ErrorCode::kNoSpace || Clock::now() - start > kRoomForVerdictMax) return left;
  }
  const RankMeeting meeting(*storage, marks, ticket.identity.save_id, options.deadlines);
  meeting.wait_until_heard(options.write.interrupted, verdict.failure ? place.count - 1 : 0);
  return {};
}

void RankSave::Impl::give_up_all(const Error& reason) {
  transaction->expect_any();  // ranks may have published before anybody could say what
  const Result<SaveMarks::Seen> seen = marks.look();
  if (seen && !seen->leases.empty()) {
    RankMeeting meeting(*storage, marks, ticket.identity.save_id, SaveDeadlines());
    std::vector<Error> failures = meeting.failures();
    failures.push_back(Error(reason).rank(place.rank));
    // Even after a commit one comes here, if memory ran out in finish().
    const Verdict verdict{Error::of_ranks(std::move(failures)), transaction->may_have_committed()};
    if (marks.leave_verdict(verdict)) meeting.wait_until_heard({});
  }
  transaction.reset();
}

Result<RankSaveReport> RankSave::Impl::follow(std::vector<ImageFile> images, const RankSaveOptions& options) {
  // A rank without files agrees to the commit by being there.
  if (images.empty() && fate != nullptr) CAIRN_TRY(fate->begin_decisive_step());
  VerdictWatch watch(*storage, marks, {ticket.identity.save_id, place.coordinator, options.write.durability},
                     options.deadlines);
  const auto& interrupted = options.write.interrupted;
  Result<std::optional<Verdict>> verdict{std::optional<Verdict>()};
  const auto is_decided = [&] { return !verdict || verdict->has_value(); };
  NowAndThen news;
  bool is_interrupted = false;
  WriteOptions write_options = options.write;
  write_options.interrupted = [&] {
    if (news.is_due()) verdict = watch.look();
    is_interrupted = interrupted && interrupted();
    return is_interrupted || is_decided();
  };
  Result<std::vector<std::uint32_t>> trailers =
      attempt([&] { return write(std::move(images), write_options); });  // (3, 4)
  if (!trailers && !is_decided()) {
    remove_private_files();
    (void)marks.leave_failure(place.rank, trailers.error());
  }
  progress.phase = Phase::kWaiting;
  for (Backoff backoff; !is_decided() && !is_interrupted; backoff.pause()) {  // (7)
    verdict = attempt([&] { return watch.look(); });
    is_interrupted = interrupted && interrupted();
  }
  if (!is_decided()) {
    const Error error = cancelled("waiting for the coordinator: unless it has committed already, the save fails");
    if (trailers) (void)marks.leave_failure(place.rank, error);
    leave();
    return of_this_rank(trailers ? error : std::move(trailers).error());
  }
  // Without this rank's files nothing was committed, even if nobody answers.
  if (!verdict && !trailers) verdict = of_this_rank(std::move(trailers).error());
  return conclude(verdict, watch);
}

Result<RankSaveReport> RankSave::Impl::conclude(const Result<std::optional<Verdict>>& verdict, VerdictWatch& watch) {
  if (verdict && !(*verdict)->failure && fate != nullptr) fate->note_committed();
  if (verdict && (*verdict)->failure && !(*verdict)->files_stay) files.withdraw();
  leave();
  // After a failed sync the old checkpoint may come back, so its files stay. The sync is not tried again: a second one
  // may succeed without the data.
  const bool both_stay = verdict && (*verdict)->files_stay;
  if (!both_stay && watch.coordinator_is_dead()) (void)clean_up_after(*storage, ticket.identity.save_id);
  if (!verdict) return of_this_rank(verdict.error());
  if ((*verdict)->failure) return *(*verdict)->failure;
  return RankSaveReport{progress.bytes_written, (*verdict)->warnings};
}

void RankSave::Impl::leave() {
  lease.reset();
  // The coordinator waits for it: so once more if it fails.
  const std::string name = marks.path_of(rank_lease_name(place.rank));
  if (!storage->remove(name)) (void)storage->remove(name);
}

}  // namespace cairn::transfer
