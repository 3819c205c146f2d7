// InnerTensorWalk: the plain tensors among the parts of a value in a pickle's graph.
//
// Pure and inert. One thread at a time. Looks at each container once, however many values refer to it.
#pragma once

#include <cairn/seeded_hash.h>

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "format/pickle/graph.h"
#include "format/torch_file/tensor_node.h"

namespace cairn::torch_file {

class InnerTensorWalk {
 public:
  // `graph` outlives the walk.
  explicit InnerTensorWalk(const pickle::Graph& graph) : graph_(graph) {}

  // Without the parts of containers that an earlier call has looked at. A description that read_tensor_node() refuses
  // is no tensor here.
  std::vector<TensorNode> tensors_in(pickle::Node value);

 private:
  void push_parts(pickle::Node node);

  const pickle::Graph& graph_;
  std::unordered_set<std::uint64_t, SeededHash> seen_;  // containers and calls
  std::vector<pickle::Node> open_;
};

}  // namespace cairn::torch_file
