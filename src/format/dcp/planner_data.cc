#include "format/dcp/planner_data.h"

#include <string_view>
#include <unordered_set>

namespace cairn::dcp {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::Node;

std::optional<Path> read_path(const Graph& graph, Node node) {
  if (!graph.is(node, Kind::kTuple) && !graph.is(node, Kind::kList)) return std::nullopt;
  Path path;
  for (const Node element : graph.elements(node)) {
    if (const auto text = graph.text_if(element)) {
      path.emplace_back(std::string(*text));
    } else if (const auto position = graph.integer_if(element)) {
      path.emplace_back(*position);
    } else {
      return std::nullopt;
    }
  }
  return path;
}

// The dicts, the one whose entries win first.
std::optional<std::vector<Node>> maps_of(const Graph& graph, Node node) {
  if (graph.is(node, Kind::kDict)) return std::vector<Node>{node};
  if (!graph.makes(node, "collections", "ChainMap")) return std::nullopt;
  std::vector<Node> maps;
  for (const Node argument : graph.elements(graph.arguments(node))) maps.push_back(argument);
  if (const Node state = graph.state(node); state.is_set() && graph.is(state, Kind::kDict)) {
    const pickle::Elements elements = graph.elements(state);
    for (auto element = elements.begin(); element != elements.end(); ++element) {
      const bool found = graph.text_if(*element) == "maps";
      const Node value = *++element;
      if (!found) continue;
      if (!graph.is(value, Kind::kList)) return std::nullopt;
      for (const Node map : graph.elements(value)) maps.push_back(map);
    }
  }
  for (const Node map : maps) {
    if (!graph.is(map, Kind::kDict)) return std::nullopt;
  }
  return maps;
}

}  // namespace

std::optional<FlatMapping> read_flat_mapping(const Graph& graph, Node node) {
  const std::optional<std::vector<Node>> maps = maps_of(graph, node);
  if (!maps) return std::nullopt;
  // A pickle from a stranger may name one large dict or path again and again: what they make is bounded by its size.
  std::unordered_set<std::uint64_t> seen_maps;
  std::unordered_set<std::string_view> seen_keys;
  std::size_t elements_left = graph.input().size();
  FlatMapping mapping;
  for (const Node map : *maps) {
    if (!seen_maps.insert(map.bits()).second) continue;
    const pickle::Elements elements = graph.elements(map);
    for (auto element = elements.begin(); element != elements.end(); ++element) {
      const auto key = graph.text_if(*element);
      const Node place = *++element;
      if (!key) return std::nullopt;
      std::optional<Path> path = read_path(graph, place);
      if (!path || path->size() + 1 > elements_left) return std::nullopt;
      elements_left -= path->size() + 1;
      if (seen_keys.insert(*key).second) mapping.emplace_back(*key, std::move(*path));
    }
  }
  return mapping;
}

}  // namespace cairn::dcp
