#include "commit/bucket/tagged_lease.h"

#include <cerrno>
#include <utility>

#include "storage/staleness.h"

namespace cairn::commit {
namespace {

using storage::WriteCondition;
using storage::WriteOutcome;

// Each refusal but the last is followed by a look at the text in place.
constexpr int kWriteTriesMax = 4;

SaveId save_in_lease(const std::string& identity) {
  const std::optional<LeaseHolder> holder = decode_lease(identity);
  return holder ? holder->identity.save_id : SaveId();
}

}  // namespace

TaggedLease::TaggedLease(storage::Storage& storage, std::string name, std::string identity, Lease::Progress progress)
    : storage_(storage),
      name_(std::move(name)),
      identity_(std::move(identity)),
      save_id_(save_in_lease(identity_)),
      progress_(std::move(progress)) {}

Result<std::shared_ptr<TaggedLease>> TaggedLease::take(storage::Storage& storage, std::string name,
                                                       std::string identity, Lease::Progress progress) {
  std::shared_ptr<TaggedLease> lease(
      new TaggedLease(storage, std::move(name), std::move(identity), std::move(progress)));
  CAIRN_TRY(lease->create());
  return lease;
}

// The number of the beat makes each text new: equal texts would have equal tags.
std::string TaggedLease::text() const {
  std::string text = identity_ + "beat " + std::to_string(beats_) + "\n";
  if (commit_) text += encode_announced(*commit_);
  if (is_decided_) text += kDecidedLine;
  if (progress_) text += encode_progress_line(progress_());
  return text;
}

Result<void> TaggedLease::create() {
  const std::string first = text();
  CAIRN_TRY_ASSIGN(WriteOutcome outcome, storage_.write_if(name_, first, WriteCondition::absent()));
  if (outcome.kind == WriteOutcome::Kind::kWritten) {
    tag_ = std::move(outcome.tag);
    return {};
  }
  const Result<storage::TaggedContent> read = storage_.read_tagged(name_, kLeaseBytesMax);
  if (read && read->bytes == first) {  // the answer of this write was lost
    tag_ = read->tag;
    return {};
  }
  if (outcome.why) return *std::move(outcome.why);
  return Error(ErrorCode::kUnavailable, "the save has a lease already").file(name_).error_number(EEXIST);
}

Result<void> TaggedLease::beat() {
  const std::lock_guard lock(mutex_);
  return write();
}

Result<void> TaggedLease::announce(const AnnouncedCommit& commit) {
  const std::lock_guard lock(mutex_);
  commit_ = commit;
  return write();
}

// A refused or unanswered write is followed by a look at the text in place: the answer to this write or to an earlier
// write may have been lost, or SaveMarks has added the line of the decision. A text of this save that is not closed is
// one of these, and the next write replaces that text.
Result<void> TaggedLease::write() {
  Error failure(ErrorCode::kUnavailable, "the lease of the save is changed again and again");
  for (int tries = 1; tries <= kWriteTriesMax && !is_lost_; ++tries) {
    ++beats_;
    const std::string next = text();
    CAIRN_TRY_ASSIGN(WriteOutcome outcome, storage_.write_if(name_, next, WriteCondition::of_tag(tag_)));
    if (outcome.kind == WriteOutcome::Kind::kWritten) {
      tag_ = std::move(outcome.tag);
      return {};
    }
    if (outcome.why) failure = *std::move(outcome.why);
    const Result<storage::TaggedContent> read = storage_.read_tagged(name_, kLeaseBytesMax);
    if (!read && !storage::is_absent(read.error())) return read.error();
    const std::optional<LeaseHolder> holder = read ? decode_lease(read->bytes) : std::nullopt;
    is_lost_ = !holder || holder->is_closed || holder->identity.save_id != save_id_;
    if (is_lost_) break;
    tag_ = read->tag;
    is_decided_ = is_decided_ || holder->is_decided;
    if (read->bytes == next) return {};
  }
  if (is_lost_) return lost();
  return std::move(failure).file(name_);
}

Error TaggedLease::lost() const {
  return Error(ErrorCode::kUnavailable,
               "the save was silent for so long that another save took it for dead, or it was given up: save again")
      .file(name_);
}

}  // namespace cairn::commit
