// to_value: a node of a pickle's graph as a plain Value.
#pragma once

#include <cairn/result.h>
#include <cairn/value.h>

#include <optional>

#include "core/byte_budget.h"
#include "format/pickle/graph.h"

namespace cairn::pickle {

// Gives what only the container of a pickle can: the tensors that it stores beside the pickle.
class Resolver {
 public:
  virtual ~Resolver() = default;
  // Asked about every call, instance and persistent id before anything else. nullopt: not for me. What it makes beside
  // the Value itself it charges to `budget`.
  virtual Result<std::optional<Value>> resolve(const Graph& graph, Node node, ByteBudget& budget) = 0;
};

// Containers nested deeper than this are refused.
inline constexpr std::size_t kValueDepthMax = 200;

// `budget` is charged all that the value takes: kUnsupported if that is more. What the pickle says twice by reference
// is copied, with the same Value::identity(). kUnsupported also for cycles.
//
// Known names become plain values: OrderedDict, set, frozenset, complex, bytearray and `_codecs.encode` (Bytes), NumPy
// arrays and scalars of plain dtypes. Every other call becomes an inert Object.
Result<Value> to_value(const Graph& graph, Node node, ByteBudget& budget, Resolver* resolver = nullptr);

}  // namespace cairn::pickle
