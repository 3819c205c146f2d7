#include "format/torch_file/storage_walk.h"

#include <utility>

namespace cairn::torch_file {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::Node;

StorageWalk::Found found_storage(const Graph& graph, Node node) {
  StorageWalk::Found found{node, graph.persistent_id(node), std::nullopt, {}, std::nullopt};
  if (const Result<StorageNode> storage = read_storage_node(graph, found.id)) {
    found.key = storage->key;
    found.bytes = storage->bytes;
  } else if (graph.is(found.id, Kind::kTuple)) {
    constexpr std::size_t kKeyPlace = 2;
    std::size_t place = 0;
    for (const Node part : graph.elements(found.id)) {
      if (place++ == kKeyPlace) found.key = graph.text_if(part).value_or(std::string_view());
    }
  }
  return found;
}

// The storage of a plain tensor: the first argument of the call, or of the call that makes a tensor with attributes:
// (function, class, arguments of the function, state). Unset for arguments of any other form.
Node storage_of(const Graph& graph, Node tensor) {
  const pickle::Elements own = graph.elements(graph.arguments(tensor));
  if (own.empty()) return Node();
  if (graph.is(own.front(), Kind::kPersistent)) return own.front();
  for (const Node part : own) {
    if (!graph.is(part, Kind::kTuple) || graph.elements(part).empty()) continue;
    const Node first = graph.elements(part).front();
    return graph.is(first, Kind::kPersistent) ? first : Node();
  }
  return Node();
}

}  // namespace

Result<void> StorageWalk::walk(Node value, const Visit& visit) {
  open_.clear();
  push(value);
  while (!open_.empty()) {
    const Node node = open_.back();
    open_.pop_back();
    if (graph_.is(node, Kind::kPersistent)) {
      if (!is_module_class(graph_, graph_.persistent_id(node))) CAIRN_TRY(visit(found_storage(graph_, node)));
      push(graph_.persistent_id(node));
      continue;
    }
    const Result<std::optional<TensorNode>> tensor = read_window_node(graph_, node);
    const Node storage = tensor && *tensor ? storage_of(graph_, node) : Node();
    if (!storage.is_set()) {
      push_parts(node);
      continue;
    }
    push_beside(node, storage);
    const TensorNode& window = **tensor;
    CAIRN_TRY(visit({node, graph_.persistent_id(storage), window, window.storage_key, window.storage_bytes}));
  }
  return {};
}

void StorageWalk::push(Node node) {
  if (!node.is_set()) return;
  switch (graph_.kind(node)) {
    case Kind::kTuple:
    case Kind::kFrozenSet:
    case Kind::kList:
    case Kind::kSet:
    case Kind::kDict:
    case Kind::kCall:
    case Kind::kInstance:
    case Kind::kPersistent:
      if (seen_.insert(node.bits()).second) open_.push_back(node);
      return;
    default: return;
  }
}

void StorageWalk::push_parts(Node node) {
  if (graph_.is(node, Kind::kCall) || graph_.is(node, Kind::kInstance)) {
    for (const Node part : {graph_.callable(node), graph_.arguments(node), graph_.state(node), graph_.items(node)}) {
      push(part);
    }
    return;
  }
  for (const Node part : graph_.elements(node)) push(part);
}

// The parts of a plain tensor except its storage: hooks, and attributes.
void StorageWalk::push_beside(Node tensor, Node storage) {
  for (const Node part : graph_.elements(graph_.arguments(tensor))) {
    const bool holds_storage =
        graph_.is(part, Kind::kTuple) && !graph_.elements(part).empty() && graph_.elements(part).front() == storage;
    if (!holds_storage && !(part == storage)) push(part);
    if (!holds_storage) continue;
    for (const Node argument : graph_.elements(part)) {
      if (!(argument == storage)) push(argument);
    }
  }
}

}  // namespace cairn::torch_file
