#include "commit/lease_watch.h"

#include <algorithm>
#include <utility>

namespace cairn::commit {
namespace {

// Holders beat every few seconds: a single missed beat is not silence.
constexpr std::chrono::seconds kSilenceMin{20};
// In a storage without a rename heartbeats are a minute apart.
constexpr std::chrono::seconds kTaggedSilenceMin{200};

}  // namespace

Result<bool> LeaseWatch::find_touch() {
  if (storage_.has_rename()) {
    CAIRN_TRY_ASSIGN(const double touched_at, storage_.touched_at(name_));
    return std::exchange(touched_at_, touched_at) != touched_at;
  }
  CAIRN_TRY_ASSIGN(storage::TaggedContent content, storage_.read_tagged(name_, kLeaseBytesMax));  // one request
  if (content.tag == tag_) return false;
  tag_ = std::move(content.tag);
  holder_ = decode_lease(content.bytes);
  return true;
}

LeaseWatch::Liveness LeaseWatch::look(const SaveDeadlines& deadlines, Clock::time_point now) {
  if (!last_sign_) last_sign_ = now;
  was_touched_ = false;
  const Result<bool> touched = find_touch();
  if (!touched && touched.error().code() == ErrorCode::kNotFound) return Liveness::kAbsent;
  was_touched_ = touched && *touched;
  if (was_touched_) {
    last_sign_ = now;
    unchanged_looks_ = 0;
  }
  if (!touched && !failing_since_) failing_since_ = now;
  if (touched) {
    failing_since_.reset();
    if (!was_touched_) ++unchanged_looks_;
  }
  bool is_read = !storage_.has_rename() && was_touched_ && holder_;
  if (storage_.has_rename() && (was_touched_ || !holder_)) {
    if (Result<std::optional<LeaseHolder>> read = read_lease(storage_, name_); read && *read) {
      holder_ = std::move(*read);
      is_read = true;
    }
  }
  if (is_read) stall_ = holder_->progress ? stall_in(*holder_->progress, deadlines) : std::nullopt;
  if (holder_is_dead() || (holder_ && holder_->is_closed)) return Liveness::kDead;
  const auto shortest = storage_.has_rename() ? kSilenceMin : kTaggedSilenceMin;
  const auto limit = std::max<Clock::duration>(deadlines.progress, shortest);
  // A failed look says nothing about the holder, and looks may be far apart: a second look confirms the silence.
  const bool is_silent = touched && unchanged_looks_ > 1 && now - *last_sign_ > limit;
  if (is_silent || (failing_since_ && now - *failing_since_ > limit)) return Liveness::kSilent;
  return stall_ ? Liveness::kStuck : Liveness::kAlive;
}

bool LeaseWatch::holder_is_dead() const {
  return holder_ && holder_->process.state() == os::ProcessIdentity::State::kDead;
}

std::string LeaseWatch::holder() const {
  if (!holder_) return "";
  return "host " + holder_->process.host + ", pid " + std::to_string(holder_->process.pid);
}

}  // namespace cairn::commit
