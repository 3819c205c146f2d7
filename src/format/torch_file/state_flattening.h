// flatten_state: the leaves of the nested state in a torch file's pickle, by the rules of DCP (StateFile states them).
//
// Pure and inert. Bounded: charges a budget for each leaf and each step.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <optional>
#include <string>
#include <vector>

#include "core/byte_budget.h"
#include "core/nested_shape.h"
#include "format/pickle/graph.h"
#include "format/pickle/value_reader.h"

namespace cairn::torch_file {

struct FlatEntry {
  Path path;
  pickle::Node node;
};

// The state of which the pickle has a part.
struct StateAround {
  // If set, the pickle holds the entry of this name in a state without other entries, and the root may be anything. If
  // not, the pickle holds the state.
  std::optional<std::string> item = {};
};

// kUnsupported if the root is not a mapping (StateAround), or nests deeper than kValueDepthMax (value_reader.h).
Result<std::vector<FlatEntry>> flatten_state(const pickle::Graph& graph, ByteBudget& budget,
                                             const StateAround& around = {});

// What the leaves' flat keys lose; `before` of an empty mapping counts leaves. An attribute or a key that can't be read
// without code is among `unheld`. `resolver` reads the tensors in attributes; null: none can be read. Errors as of
// flatten_state().
Result<NestedShape> shape_of_state(const pickle::Graph& graph, ByteBudget& budget, pickle::Resolver* resolver = nullptr,
                                   const StateAround& around = {});

// The attributes of the OrderedDicts that come apart, by their places. Errors as of flatten_state().
Result<std::vector<FlatEntry>> attributes_of_state(const pickle::Graph& graph, ByteBudget& budget,
                                                   const StateAround& around = {});

// The class of a node in words, for errors: "torch._utils._rebuild_tensor_v2", "a list".
std::string class_of(const pickle::Graph& graph, pickle::Node node);

}  // namespace cairn::torch_file
