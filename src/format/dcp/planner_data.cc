#include "format/dcp/planner_data.h"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "core/seeded_hash.h"

namespace cairn::dcp {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::Node;

// Bytes of an entry: in the mapping, whose capacity may be twice its size while growing, and in the set of keys.
constexpr std::uint64_t kEntryBytes = 2 * sizeof(FlatMapping::value_type) + 64;

Result<std::optional<Path>> read_path(const Graph& graph, Node node, ByteBudget& budget) {
  using Maybe = std::optional<Path>;
  if (!graph.is(node, Kind::kTuple) && !graph.is(node, Kind::kList)) return Maybe();
  const pickle::Elements elements = graph.elements(node);
  CAIRN_TRY(budget.charge(elements.size(), sizeof(PathElement)));
  Path path;
  path.reserve(elements.size());
  for (const Node element : elements) {
    if (const auto text = graph.text_if(element)) {
      CAIRN_TRY(budget.charge(heap_bytes(text->size())));
      path.emplace_back(std::string(*text));
    } else if (const auto position = graph.integer_if(element)) {
      path.emplace_back(*position);
    } else {
      return Maybe();
    }
  }
  return Maybe(std::move(path));
}

// The dicts of the mapping, in order of precedence: the first dict's entries win.
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

Result<std::optional<FlatMapping>> read_flat_mapping(const Graph& graph, Node node, ByteBudget& budget) {
  using Maybe = std::optional<FlatMapping>;
  const std::optional<std::vector<Node>> maps = maps_of(graph, node);
  if (!maps) return Maybe();
  // A hostile pickle may name a large dict many times.
  std::unordered_set<std::uint64_t, SeededHash> seen_maps;
  struct Entry {
    std::uint64_t map;     // the dict that set the key
    std::size_t position;  // in the mapping
  };
  std::unordered_map<std::string_view, Entry, SeededHash> entries;
  FlatMapping mapping;
  for (const Node map : *maps) {
    if (!seen_maps.insert(map.bits()).second) continue;
    const pickle::Elements elements = graph.elements(map);
    for (auto element = elements.begin(); element != elements.end(); ++element) {
      const auto key = graph.text_if(*element);
      const Node place = *++element;
      if (!key) return Maybe();
      CAIRN_TRY(budget.charge(kEntryBytes + heap_bytes(key->size())));
      CAIRN_TRY_ASSIGN(std::optional<Path> path, read_path(graph, place, budget));
      if (!path) return Maybe();
      const auto [entry, is_new] = entries.try_emplace(*key, Entry{map.bits(), mapping.size()});
      if (is_new) {
        mapping.emplace_back(*key, std::move(*path));
      } else if (entry->second.map == map.bits()) {
        mapping[entry->second.position].second = std::move(*path);  // in one dict the last value wins, as in Python
      }
    }
  }
  return Maybe(std::move(mapping));
}

}  // namespace cairn::dcp
