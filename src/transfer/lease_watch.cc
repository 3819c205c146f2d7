#include "transfer/lease_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cairn::transfer {
namespace {

// Holders give a sign every few seconds: to miss one is no silence yet.
constexpr std::chrono::seconds kSilenceMin{20};
// Less than lies between two heartbeats, more than the time from reading one clock to reading the other.
constexpr double kSameBeatSeconds = 1;

}  // namespace

LeaseWatch::Life LeaseWatch::look(std::chrono::milliseconds silence_max) {
  const Clock::time_point now = Clock::now();
  if (!last_sign_) last_sign_ = now;
  const Result<double> age = storage_.seconds_since_touched(name_);
  if (!age && age.error().code() == ErrorCode::kNotFound) return Life::kAbsent;
  if (age) {
    const double touched_at = std::chrono::duration<double>(now.time_since_epoch()).count() - *age;
    if (std::abs(touched_at - touched_at_) > kSameBeatSeconds) last_sign_ = now;
    touched_at_ = touched_at;
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
