// write_node: writes a node of a pickle's graph as a pickle again, inert: the calls that the pickle names stay calls.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <unordered_map>

#include "core/seeded_hash.h"
#include "format/pickle/graph.h"
#include "format/pickle/writer.h"

namespace cairn::pickle {

// The entries of the written pickle's memo, by the bits of the graph's nodes: later mentions refer to the entry.
using NodeMemo = std::unordered_map<std::uint64_t, std::uint32_t, SeededHash>;

// Writes the objects that a pickle's container stores outside the pickle.
class PersistentWriter {
 public:
  virtual ~PersistentWriter() = default;
  // Pushes the object of `id`, a node of `graph`. Called once for each persistent node.
  virtual Result<void> write_persistent(Writer& writer, const Graph& graph, Node id) = 0;
  // Returns whether the writer has a form of its own for the call `node`, and has pushed the call's result.
  virtual Result<bool> write_call(Writer& /*writer*/, const Graph& /*graph*/, Node /*node*/) { return false; }
};

// The protocol in which write_node() writes any node of the graph: 2 where the graph's own pickle is of protocol 2.
int protocol_of(const Graph& graph);

// Pushes the object of `node`; `writer` has protocol_of(graph). An object that `node` refers to more than once is
// written once, so the result is at most a few times as long as the pickle. kUnsupported for a cycle through a tuple or
// an argument, for nesting beyond kValueDepthMax, and for an object outside the pickle if `persistent` is null. Several
// nodes of one graph in one pickle share `memo`.
Result<void> write_node(Writer& writer, const Graph& graph, Node node, PersistentWriter* persistent = nullptr,
                        NodeMemo* memo = nullptr);

}  // namespace cairn::pickle
