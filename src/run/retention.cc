#include "run/retention.h"

#include <algorithm>
#include <utility>

namespace cairn::run {
namespace {

// Asks the callback once for each entry.
class Goodness {
 public:
  Goodness(std::size_t count, const std::function<bool(std::size_t)>& is_good) : known_(count), is_good_(is_good) {}

  bool operator()(std::size_t i) {
    if (!known_[i]) known_[i] = is_good_(i);
    return *known_[i];
  }

 private:
  std::vector<std::optional<bool>> known_;
  const std::function<bool(std::size_t)>& is_good_;
};

class Keeping {
 public:
  Keeping(std::span<const Entry> entries, const std::function<bool(std::size_t)>& is_good)
      : entries_(entries), is_good_(entries.size(), is_good), reasons_(entries.size()) {}

  void last(std::uint64_t count) {
    const std::string reason = "last " + std::to_string(count);
    for (std::size_t i = 0; i < entries_.size() && count != 0; ++i) {
      if (!is_good_(i)) continue;
      keep(i, reason);
      --count;
    }
  }

  void every_steps(std::uint64_t steps) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const std::optional<std::uint64_t> step = entries_[i].step;
      if (step && *step % steps == 0) keep(i, "every " + std::to_string(steps) + " steps");
    }
  }

  // From the oldest on: removals of other entries change no later answer.
  void every_seconds(double seconds) {
    std::optional<double> kept_at;
    for (std::size_t i = entries_.size(); i-- > 0;) {
      if (kept_at && entries_[i].time - *kept_at < seconds) continue;
      if (!is_good_(i)) continue;
      kept_at = entries_[i].time;
      keep(i, "every " + std::to_string(static_cast<std::uint64_t>(seconds)) + " s");
    }
  }

  void best(const RetentionRule::Best& best) {
    std::vector<std::pair<double, std::size_t>> ranked;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const auto found = entries_[i].metrics.find(best.metric);
      if (found == entries_[i].metrics.end()) continue;
      ranked.emplace_back(best.order == RetentionRule::Best::Order::kMin ? found->second : -found->second, i);
    }
    std::sort(ranked.begin(), ranked.end());  // of equal values the newer first
    std::uint64_t left = best.count;
    for (const auto& [value, i] : ranked) {
      if (left == 0) break;
      if (!is_good_(i)) continue;
      keep(i, "best by " + best.metric);
      --left;
    }
  }

  void newer_than(double time) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].time >= time) keep(i, "not old enough");
    }
  }

  std::vector<std::string> take() { return std::move(reasons_); }

 private:
  void keep(std::size_t i, const std::string& reason) {
    if (!reasons_[i].empty()) reasons_[i] += ", ";
    reasons_[i] += reason;
  }

  std::span<const Entry> entries_;
  Goodness is_good_;
  std::vector<std::string> reasons_;
};

}  // namespace

Result<void> check(const RetentionRule& rule) {
  const auto refused = [](const std::string& reason) { return Error(ErrorCode::kInvalidArgument, reason); };
  if (!rule.last && !rule.every_steps && !rule.every_seconds && rule.best.empty() && !rule.newer_than) {
    return refused("the rule says nothing: it would keep the newest checkpoint alone. To mean that, keep the last 1");
  }
  if (rule.last == 0) return refused("the newest checkpoint is always kept: keep the last 1 or more");
  if (rule.every_steps == 0) return refused("every 0 steps is no distance");
  if (rule.every_seconds && rule.every_seconds->count() <= 0)
    return refused("the distance in seconds must be positive");
  if (rule.newer_than && rule.newer_than->count() < 0) return refused("the age in seconds must not be negative");
  for (const RetentionRule::Best& best : rule.best) {
    if (best.metric.empty()) return refused("the metric has no name");
    if (best.count == 0) return refused("the best 0 by '" + best.metric + "' are none");
  }
  return {};
}

std::vector<std::string> kept_by(const RetentionRule& rule, std::span<const Entry> entries, double now,
                                 const std::function<bool(std::size_t)>& is_good) {
  Keeping keeping(entries, is_good);
  if (rule.last) keeping.last(*rule.last);
  if (rule.every_steps) keeping.every_steps(*rule.every_steps);
  if (rule.every_seconds) keeping.every_seconds(static_cast<double>(rule.every_seconds->count()));
  for (const RetentionRule::Best& best : rule.best) keeping.best(best);
  if (rule.newer_than) keeping.newer_than(now - static_cast<double>(rule.newer_than->count()));
  return keeping.take();
}

}  // namespace cairn::run
