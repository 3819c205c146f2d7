// The rule of prune() and of a manager, as Python gives it.
#pragma once

#include <cairn/retention.h>
#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace cairn::python {

// `rule`: last, steps, seconds, age in seconds, and (metric, whether the largest is best, count) of each metric.
RetentionRule rule_of(const nb::tuple& rule);

}  // namespace cairn::python
