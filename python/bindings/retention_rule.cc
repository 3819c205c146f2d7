#include "retention_rule.h"

#include <nanobind/stl/optional.h>

#include <chrono>
#include <cstdint>
#include <optional>

#include "text.h"

namespace cairn::python {
namespace {

std::optional<std::chrono::seconds> seconds_of(const std::optional<std::int64_t>& seconds) {
  return seconds ? std::optional(std::chrono::seconds(*seconds)) : std::nullopt;
}

}  // namespace

RetentionRule rule_of(const nb::tuple& rule) {
  RetentionRule result;
  result.last = nb::cast<std::optional<std::uint64_t>>(rule[0]);
  result.every_steps = nb::cast<std::optional<std::uint64_t>>(rule[1]);
  result.every_seconds = seconds_of(nb::cast<std::optional<std::int64_t>>(rule[2]));
  result.newer_than = seconds_of(nb::cast<std::optional<std::int64_t>>(rule[3]));
  for (const nb::handle best : nb::cast<nb::list>(rule[4])) {
    const auto order = nb::cast<bool>(best[1]) ? RetentionRule::Best::Order::kMax : RetentionRule::Best::Order::kMin;
    result.best.push_back({to_utf8(best[0]), order, nb::cast<std::uint64_t>(best[2])});
  }
  return result;
}

}  // namespace cairn::python
