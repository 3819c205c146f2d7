#include "format/torch_file/state_flattening.h"

#include <cairn/seeded_hash.h>

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "format/pickle/value_reader.h"
#include "format/torch_file/tensor_node.h"

namespace cairn::torch_file {
namespace {

using pickle::Elements;
using pickle::Graph;
using pickle::Kind;
using pickle::Node;

// Of an entry of the table of lists.
constexpr std::uint64_t kListBytes = 48;
// Keys of mappings that are not text are rarely longer.
constexpr std::size_t kKeyCharactersMax = 1000;

// The dicts whose entries are the entries of a mapping.
struct Mapping {
  std::optional<Node> argument;  // of a Counter
  std::optional<Node> items;     // key, value, key, value, ...
};

bool is_argument_dict(const Graph& graph, const Elements& arguments) {
  return arguments.size() == 1 && graph.is(arguments.front(), Kind::kDict);
}

std::optional<Mapping> mapping_of(const Graph& graph, Node node) {
  if (graph.is(node, Kind::kDict)) return Mapping{std::nullopt, node};
  if (!graph.is(node, Kind::kCall)) return std::nullopt;
  const Node callable = graph.callable(node);
  const bool is_ordered = graph.is_global(callable, "collections", "OrderedDict");
  const bool is_default = graph.is_global(callable, "collections", "defaultdict");
  const bool is_counter = graph.is_global(callable, "collections", "Counter");
  if (!is_ordered && !is_default && !is_counter) return std::nullopt;
  Mapping mapping;
  const Elements arguments = graph.elements(graph.arguments(node));
  if (!is_default && is_argument_dict(graph, arguments)) {
    mapping.argument = arguments.front();
  } else if (!is_default && !arguments.empty()) {
    return std::nullopt;
  }
  const Node items = graph.items(node);
  if (!items.is_set()) return mapping;
  if (!graph.is(items, Kind::kDict)) return std::nullopt;
  mapping.items = items;
  return mapping;
}

class Flattening {
 public:
  Flattening(const Graph& graph, ByteBudget& budget) : graph_(graph), budget_(budget) {}

  Result<std::vector<FlatEntry>> run() {
    const std::optional<Mapping> mapping = mapping_of(graph_, graph_.root());
    if (!mapping) {
      return Error(ErrorCode::kUnsupported, "the file holds no state dict; torch.load reads it")
          .expected("a dict")
          .actual(class_of(graph_, graph_.root()));
    }
    CAIRN_TRY(walk_mapping(*mapping));
    return std::move(entries_);
  }

 private:
  Result<void> walk_mapping(const Mapping& mapping) {
    if (mapping.argument) CAIRN_TRY(walk_pairs(*mapping.argument));
    if (mapping.items) CAIRN_TRY(walk_pairs(*mapping.items));
    return {};
  }

  Result<void> walk_pairs(Node dict) {
    std::optional<Node> key;
    for (const Node node : graph_.elements(dict)) {
      if (!key) {
        key = node;
        continue;
      }
      CAIRN_TRY_ASSIGN(std::string text, text_of_key(*key));
      key.reset();
      path_.emplace_back(std::move(text));
      CAIRN_TRY(walk(node));
      path_.pop_back();
    }
    return {};
  }

  Result<void> walk(Node node) {
    if (path_.size() > pickle::kValueDepthMax) return too_deep();
    CAIRN_TRY(budget_.charge(sizeof(Node)));
    if (const std::optional<Mapping> mapping = mapping_of(graph_, node)) return walk_mapping(*mapping);
    if (graph_.is(node, Kind::kList)) {
      CAIRN_TRY_ASSIGN(const bool comes_apart, list_comes_apart(node, 0));
      if (comes_apart) return walk_list(node);
    }
    std::uint64_t bytes = sizeof(FlatEntry) + path_.size() * sizeof(PathElement);
    for (const PathElement& element : path_) {
      if (const auto* text = std::get_if<std::string>(&element)) bytes += 2 * (text->size() + sizeof(std::string));
    }
    CAIRN_TRY(budget_.charge(bytes));
    entries_.push_back({path_, node});
    return {};
  }

  Result<void> walk_list(Node list) {
    std::int64_t position = 0;
    for (const Node node : graph_.elements(list)) {
      path_.emplace_back(position++);
      CAIRN_TRY(walk(node));
      path_.pop_back();
    }
    return {};
  }

  // Whether the list holds a tensor or a mapping, or a list that comes apart. Looks at each list once.
  Result<bool> list_comes_apart(Node list, std::size_t depth) {
    if (depth > pickle::kValueDepthMax) return too_deep();
    if (const auto known = lists_.find(list.bits()); known != lists_.end()) return known->second;
    CAIRN_TRY(budget_.charge(kListBytes));
    lists_.emplace(list.bits(), false);  // a list that contains itself
    for (const Node node : graph_.elements(list)) {
      bool found = makes_tensor(graph_, node) || mapping_of(graph_, node).has_value();
      if (!found && graph_.is(node, Kind::kList)) {
        CAIRN_TRY_ASSIGN(found, list_comes_apart(node, depth + 1));
      }
      if (!found) continue;
      lists_[list.bits()] = true;
      return true;
    }
    return false;
  }

  Result<std::string> text_of_key(Node key) {
    if (const std::optional<std::string_view> text = graph_.text_if(key)) return std::string(*text);
    if (const std::optional<std::int64_t> number = graph_.integer_if(key)) return std::to_string(*number);
    CAIRN_TRY_ASSIGN(const Value value, pickle::to_value(graph_, key, budget_));
    if (const std::string unknown = first_unknown_class(value); !unknown.empty()) {
      return Error(ErrorCode::kUnsupported, "a key of the state dict is no plain value").actual(unknown);
    }
    return to_string(value, kKeyCharactersMax);
  }

  Error too_deep() const {
    return Error(ErrorCode::kUnsupported, "the state dict is nested deeper than allowed, or contains itself")
        .expected("at most " + std::to_string(pickle::kValueDepthMax) + " levels");
  }

  const Graph& graph_;
  ByteBudget& budget_;
  Path path_;
  std::vector<FlatEntry> entries_;
  std::unordered_map<std::uint64_t, bool, SeededHash> lists_;  // by node: whether the list comes apart
};

}  // namespace

Result<std::vector<FlatEntry>> flatten_state(const Graph& graph, ByteBudget& budget) {
  return Flattening(graph, budget).run();
}

std::string class_of(const Graph& graph, Node node) {
  switch (graph.kind(node)) {
    case Kind::kCall:
    case Kind::kInstance: {
      const Node callable = graph.callable(node);
      if (!graph.is(callable, Kind::kGlobal)) return "the result of an unknown call";
      return std::string(graph.module(callable)) + "." + std::string(graph.name(callable));
    }
    case Kind::kGlobal: return std::string(graph.module(node)) + "." + std::string(graph.name(node));
    case Kind::kList: return "a list";
    case Kind::kTuple: return "a tuple";
    case Kind::kPersistent: return "a storage";
    default: return "a plain value";
  }
}

}  // namespace cairn::torch_file
