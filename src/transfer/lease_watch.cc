#include "transfer/lease_watch.h"

#include <algorithm>
#include <utility>

namespace cairn::transfer {
namespace {

// Holders give a sign every few seconds: to miss one is no silence yet.
constexpr std::chrono::seconds kSilenceMin{20};

}  // namespace

LeaseWatch::Life LeaseWatch::look(std::chrono::milliseconds silence_max) {
  const Clock::time_point now = Clock::now();
  if (!last_sign_) last_sign_ = now;
  const Result<double> touched_at = storage_.touched_at(name_);
  if (!touched_at && touched_at.error().code() == ErrorCode::kNotFound) return Life::kAbsent;
  if (touched_at) {
    if (*touched_at != touched_at_) last_sign_ = now;
    touched_at_ = *touched_at;
  }
  if (!holder_) {
    if (Result<std::optional<LeaseHolder>> read = read_lease(storage_, name_)) holder_ = std::move(*read);
  }
  if (holder_ && holder_->process.state() == os::ProcessIdentity::State::kDead) return Life::kDead;
  const auto limit = std::max<Clock::duration>(silence_max, kSilenceMin);
  return now - *last_sign_ > limit ? Life::kSilent : Life::kLives;
}

std::string LeaseWatch::holder() const {
  if (!holder_) return "";
  return "host " + holder_->process.host + ", pid " + std::to_string(holder_->process.pid);
}

}  // namespace cairn::transfer
