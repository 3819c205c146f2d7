#include "format/torch_file/inner_tensor_walk.h"

#include <optional>
#include <utility>

namespace cairn::torch_file {

using pickle::Kind;
using pickle::Node;

std::vector<TensorNode> InnerTensorWalk::tensors_in(Node value) {
  std::vector<TensorNode> tensors;
  open_.push_back(value);
  while (!open_.empty()) {
    const Node node = open_.back();
    open_.pop_back();
    if (makes_tensor(graph_, node)) {
      Result<std::optional<TensorNode>> tensor = read_saved_tensor_node(graph_, node);
      if (tensor && *tensor) tensors.push_back(**std::move(tensor));
    } else {
      push_parts(node);
    }
  }
  return tensors;
}

void InnerTensorWalk::push_parts(Node node) {
  switch (graph_.kind(node)) {
    case Kind::kTuple:
    case Kind::kFrozenSet:
    case Kind::kList:
    case Kind::kSet:
    case Kind::kDict:
      if (!seen_.insert(node.bits()).second) return;
      for (const Node part : graph_.elements(node)) open_.push_back(part);
      return;
    case Kind::kCall:
    case Kind::kInstance:
      if (!seen_.insert(node.bits()).second) return;
      for (const Node part : {graph_.callable(node), graph_.arguments(node), graph_.state(node), graph_.items(node)}) {
        if (part.is_set()) open_.push_back(part);
      }
      return;
    default: return;
  }
}

}  // namespace cairn::torch_file
