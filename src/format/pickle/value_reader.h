// to_value: a node of a pickle's graph as a plain Value.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <optional>

#include "core/byte_budget.h"
#include "format/pickle/graph.h"

namespace cairn::pickle {

// Supplies the objects that a pickle's container stores outside the pickle, for example tensors.
class Resolver {
 public:
  virtual ~Resolver() = default;
  // Called for every call, instance and persistent id before any other interpretation. Nullopt: the resolver does not
  // handle the node. Charges `budget` for all memory beyond the Value itself.
  virtual Result<std::optional<Value>> resolve(const Graph& graph, Node node, ByteBudget& budget) = 0;
};

// Containers nested deeper than this limit are refused.
inline constexpr std::size_t kValueDepthMax = 200;

// Charges `budget` for the whole value: kUnsafe if the budget does not suffice. An object that the pickle refers to
// more than once is copied; the copies have one Value::identity(). kUnsupported for cycles, and for nesting beyond
// kValueDepthMax.
//
// Known names become plain values: OrderedDict, set, frozenset, complex, bytearray and `_codecs.encode` (Bytes), NumPy
// arrays and scalars of plain dtypes. Every other call becomes an inert Object.
Result<Value> to_value(const Graph& graph, Node node, ByteBudget& budget, Resolver* resolver = nullptr);

}  // namespace cairn::pickle
