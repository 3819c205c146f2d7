// FlatMapping: the default planner's planner_data: the path in the nested state dict for each flat key.
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

// Reads a dict, or a ChainMap of dicts (torch before 2.3), from texts to tuples of texts and integers. Nullopt for any
// other planner_data. Fails if `budget` does not have the mapping's bytes.
Result<std::optional<FlatMapping>> read_flat_mapping(const pickle::Graph& graph, pickle::Node node, ByteBudget& budget);

}  // namespace cairn::dcp
