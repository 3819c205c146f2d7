// FlatMapping: the default planner's planner_data: where each flat key sits in the nested state dict.
//
// Pure.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/byte_budget.h"
#include "format/pickle/graph.h"

namespace cairn::dcp {

using FlatMapping = std::vector<std::pair<std::string, Path>>;

// From a dict, or a ChainMap of dicts (torch before 2.3), from texts to tuples of texts and integers. Nullopt for
// whatever else a planner may keep there. Fails if `budget` does not have what the mapping takes.
Result<std::optional<FlatMapping>> read_flat_mapping(const pickle::Graph& graph, pickle::Node node, ByteBudget& budget);

}  // namespace cairn::dcp
