// A storage without a rename has no private names, no lock, and no operation on two names. Writers agree by writes with
// a condition: on the absence of a file, or on the tag of the version in place. Tags are those of contents that hold a
// save id, so a tag never comes back. The numbers are those of save_transaction.cc.
//
// 1. Claim.
//    a. Create `lease` in the folder, if absent. Each later text of the lease is written on the tag of the text before
//       (tagged_lease.cc). Nothing ever creates the lease again.
//    b. Note the metadata file in place, with its tag, and refuse a store that ignores conditions.
// 2. Write. The files have final names with the save id from the start, and no other save uses the names.
// 3. Publish. Nothing to do: no reader takes a file that no metadata file names.
// 4. Seal. The document stays in memory.
// 5. Commit.
//    a. If the replaced files have names without a save id, list the names in the folder.
//    b. Announce: the next text of the lease holds the condition of the write that follows. If the lease was closed or
//       removed, the save fails here. A closed lease refuses every later announcement.
//    c. Write the metadata file, if absent or on the noted tag. Written: the commit point. Refused: read the file. If
//       the file is this save's, the answer of the write was lost. If it is of an earlier save of this job, or was
//       removed, note the tag and go back to b. Otherwise the save is superseded.
//    d. Without an answer, read the file. If it is neither this save's nor proves that the condition can't hold any
//       more, the outcome is unknown: nothing is withdrawn, and the lease stays with its announcement.
// 7. Clean (bucket_leftovers.cc). There is no lock: before another save's files are removed, it must be certain that
//    its commit can't succeed any more.
//    a. Remove the files that only the replaced metadata file named.
//    b. Of each other save whose leases have run out by the store's clock: close its lease, on the tag of the text that
//       was just read. A heartbeat or an announcement in between refuses the closing, and the save is left alone.
//    c. Read the metadata file that the closed lease announces; without an announcement nothing was ever written. If
//       the file is the dead save's, the save has committed: its files stay. If the announced condition is a tag, and
//       another version is in place, the write is refused whenever it arrives. Otherwise it may still succeed, from a
//       request under way, or from a process that was stopped between b and c of step 5: the save is left alone. It is
//       in doubt until a later save has changed the tag, at most for an hour after the closing: a store refuses a
//       request that was signed more than a quarter of an hour before. A write on the absence of the file is always in
//       doubt for the hour: the file may be removed, and be absent again.
//    d. Remove the files with the id of the dead save, its unfinished uploads, the files of its folder, and at last its
//       lease. From now on its process can neither announce nor commit.
//    e. A file with the id of a save without a lease has leaked: of a rank that came late, or of a checkpoint whose
//       replacing save was killed. The lease is created before each file, and removed when the commit has happened, or
//       can't happen any more. So: list, look that there is no lease, then read the metadata files. A leaked file that
//       no metadata file names is removed when it is five minutes old.
//    f. Remove what a killed trial of the conditions has left (step 1b), when it is five minutes old.
//
// A save therefore loses a file only after its commit was made impossible.
#include "commit/bucket/bucket_commit.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "commit/bucket/bucket_leftovers.h"
#include "commit/checkpoint_commit.h"
#include "commit/dcp_names.h"
#include "commit/leftovers.h"

namespace cairn::commit {
namespace {

using storage::WriteCondition;
using storage::WriteOutcome;

// What a store takes in one request.
constexpr std::uint64_t kMetadataPutBytesMax = std::uint64_t{5} << 30;
// Of the same write, when the store refuses it although the condition holds: two writes at the same instant.
constexpr int kSameConditionTriesMax = 8;
// Of all writes of a commit: each goes on from an earlier save of this job.
constexpr int kCommitTriesMax = 1000;

WriteCondition condition_on(const MetadataInPlace& in_place) {
  return in_place.present ? WriteCondition::of_tag(in_place.tag) : WriteCondition::absent();
}

Error unknown_outcome(Error why) {
  return std::move(why).while_doing(
      "committing; it is unknown which checkpoint is or will be in place, so the files of both are kept: look at the "
      "checkpoint before you save again");
}

// Whether the store may have carried out a call that ended with the error.
bool is_in_doubt(const Error& error) {
  return error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kCancelled;
}

class BucketCommit final : public CheckpointCommit {
 public:
  BucketCommit(storage::Storage& storage, const SaveIdentity& identity, const ClaimOptions& options)
      : CheckpointCommit(storage, identity, options) {}

  // (1b)
  Result<bool> look(Warnings& /*warnings*/) override {
    CAIRN_TRY_ASSIGN(const bool keeps_conditions, storage_.keeps_conditions());
    if (!keeps_conditions && !options_.single_writer) {
      return Error(ErrorCode::kUnsupported,
                   "the object store ignores conditions on writes (If-None-Match, If-Match): two saves could both "
                   "report success. Use a store that keeps conditions; or, if a single job ever writes to this "
                   "checkpoint, set single_writer");
    }
    CAIRN_TRY_ASSIGN(seen_, read_metadata_in_place(storage_, metadata_name_));
    CAIRN_TRY(check_overwrite(seen_));
    if (!options_.beside_a_model) {
      CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage_.list());
      CAIRN_TRY(check_model(files));
    }
    return false;
  }

  // (4)
  Result<std::vector<FolderFile>> sealed_files(const CommitContent& content) override {
    CAIRN_TRY_ASSIGN(document_, content.render());
    if (document_.size() <= kMetadataPutBytesMax) return std::vector<FolderFile>();
    return Error(ErrorCode::kUnsupported, "the metadata is too large for one write into a bucket: save fewer chunks")
        .file(metadata_name_)
        .expected("at most " + std::to_string(kMetadataPutBytesMax) + " bytes")
        .actual(std::to_string(document_.size()));
  }

  // (5a)
  Result<std::optional<ReplacedList>> look_again(const CommitContent& content) override {
    files_ = content.files;
    orphans_ = orphaned_files(storage_, metadata_name_, seen_, files_);
    const bool all_have_ids =
        std::all_of(orphans_.begin(), orphans_.end(), [](const std::string& name) { return save_id_in_name(name); });
    if (all_have_ids) return std::optional<ReplacedList>();
    return std::optional(ReplacedList{encode_replaced_names(orphans_), false});
  }

  Result<void> make_visible(Durability /*durability*/, bool& may_be_visible) override {
    int same_condition_tries = 0;
    for (int tries = 1; tries <= kCommitTriesMax; ++tries) {
      const WriteCondition condition = condition_on(seen_);
      CAIRN_TRY(lease_->announce({metadata_name_, condition}));  // (5b)
      may_be_visible = true;                                     // also if write_if() throws
      Result<WriteOutcome> outcome = storage_.write_if(metadata_name_, document_, condition);  // (5c)
      if (!outcome) {
        if (!is_in_doubt(outcome.error())) {
          may_be_visible = false;
          return std::move(outcome).error();
        }
        outcome = WriteOutcome{WriteOutcome::Kind::kUnknown, "", true, outcome.error()};
      }
      if (outcome->kind == WriteOutcome::Kind::kWritten) return {};
      Result<MetadataInPlace> now = read_metadata_in_place(storage_, metadata_name_);
      if (!now) return unknown_outcome(std::move(now).error());
      if (is_mine(*now)) return {};
      if (may_still_happen(*outcome, condition, *now)) {  // (5d)
        Error unanswered(ErrorCode::kUnavailable, "the store did not answer the write in time");
        return unknown_outcome(outcome->why.value_or(std::move(unanswered).file(metadata_name_)));
      }
      may_be_visible = false;
      CAIRN_TRY(check_not_superseded(*now));
      const bool same = now->present == seen_.present && now->tag == seen_.tag;
      same_condition_tries = same ? same_condition_tries + 1 : 0;
      if (same_condition_tries > kSameConditionTriesMax) break;
      if (!same) note_replaced(*std::move(now));
    }
    return Error(ErrorCode::kUnavailable, "the store refuses the write again and again; save again")
        .file(metadata_name_);
  }

  bool may_clean_unlocked(bool is_given_up) const override { return !is_given_up; }

  Result<void> clean(LockState /*lock*/, Durability /*durability*/, Warnings& warnings) override {
    const Warnings left = options_.alone_as_rank
                              ? clean_bucket_as_rank(storage_, files_, orphans_, *options_.alone_as_rank)
                              : clean_bucket(storage_, identity_.save_id, metadata_name_, files_, orphans_);
    warnings.insert(warnings.end(), left.begin(), left.end());
    return {};
  }

 private:
  // A refusal is final, unless a try of the write had no answer, and its condition may hold again.
  static bool may_still_happen(const WriteOutcome& outcome, const WriteCondition& condition,
                               const MetadataInPlace& now) {
    const bool all_answered = outcome.kind == WriteOutcome::Kind::kRefused && !outcome.answer_was_lost;
    return !all_answered && (condition.kind == WriteCondition::Kind::kAbsent || condition.tag == now.tag);
  }

  // What this save replaces is no more what was in place at the claim, but an earlier save of this job, or nothing.
  void note_replaced(MetadataInPlace now) {
    seen_ = std::move(now);
    orphans_ = orphaned_files(storage_, metadata_name_, seen_, files_);
  }

  std::string document_;
};

}  // namespace

std::unique_ptr<CommitStrategy> commit_in_bucket(storage::Storage& storage, const SaveIdentity& identity,
                                                 const ClaimOptions& options) {
  return std::make_unique<BucketCommit>(storage, identity, options);
}

Result<void> refuse_in_bucket(const storage::Storage& storage, std::string_view what) {
  if (storage.has_rename()) return {};
  return Error(ErrorCode::kUnsupported, "Cairn does not save " + std::string(what) +
                                            " into a bucket yet: save a checkpoint, or save into a directory and copy "
                                            "the files");
}

}  // namespace cairn::commit
