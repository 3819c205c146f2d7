// Which checkpoints of a run a RetentionRule keeps. Pure, except for the callback.
#pragma once

#include <cairn/result.h>
#include <cairn/retention.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cairn::run {

struct Entry {
  std::optional<std::uint64_t> step = {};
  double time = 0;  // seconds since 1970
  std::map<std::string, double> metrics = {};
};

// kInvalidArgument for a rule without a part, and for a part that can't be meant: every 0 steps, a metric without a
// name.
Result<void> check(const RetentionRule& rule);

// For each of `entries`, which are in the order of latest(), the newest first: the parts of the rule that keep it, as
// texts for people ("last 3"); empty: the rule does not keep it. `is_good(i)` is asked at most once for an entry, and
// only where the answer counts. `now`: seconds since 1970.
std::vector<std::string> kept_by(const RetentionRule& rule, std::span<const Entry> entries, double now,
                                 const std::function<bool(std::size_t)>& is_good);

}  // namespace cairn::run
