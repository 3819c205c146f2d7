#include "commit/lease_watch.h"

#include <algorithm>
#include <utility>

namespace cairn::commit {
namespace {

// Holders beat every few seconds: a single missed beat is not silence.
constexpr std::chrono::seconds kSilenceMin{20};

}  // namespace

LeaseWatch::Liveness LeaseWatch::look(const SaveDeadlines& deadlines) {
  const Clock::time_point now = Clock::now();
  if (!last_sign_) last_sign_ = now;
  const Result<double> touched_at = storage_.touched_at(name_);
  if (!touched_at && touched_at.error().code() == ErrorCode::kNotFound) return Liveness::kAbsent;
  const bool is_new = touched_at && *touched_at != touched_at_;
  if (is_new) {
    last_sign_ = now;
    touched_at_ = *touched_at;
  }
  if (is_new || !holder_) {
    if (Result<std::optional<LeaseHolder>> read = read_lease(storage_, name_); read && *read) {
      holder_ = std::move(*read);
      stall_ = holder_->progress ? stall_in(*holder_->progress, deadlines) : std::nullopt;
    }
  }
  if (holder_ && holder_->process.state() == os::ProcessIdentity::State::kDead) return Liveness::kDead;
  const auto limit = std::max<Clock::duration>(deadlines.progress, kSilenceMin);
  if (now - *last_sign_ > limit) return Liveness::kSilent;
  return stall_ ? Liveness::kStuck : Liveness::kAlive;
}

std::string LeaseWatch::holder() const {
  if (!holder_) return "";
  return "host " + holder_->process.host + ", pid " + std::to_string(holder_->process.pid);
}

}  // namespace cairn::commit
