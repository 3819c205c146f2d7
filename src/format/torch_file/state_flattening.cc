#include "format/torch_file/state_flattening.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/seeded_hash.h"
#include "format/pickle/value_reader.h"
#include "format/torch_file/key_text.h"
#include "format/torch_file/tensor_node.h"
#include "format/torch_file/weights_only.h"

namespace cairn::torch_file {
namespace {

using pickle::Elements;
using pickle::Graph;
using pickle::Kind;
using pickle::Node;

// The steps of the flat names of one mapping, by the key's node: of the keys that are neither text nor small integers,
// and of those whose text another key has.
using KeyNames = std::unordered_map<std::uint64_t, std::string, SeededHash>;

// A mapping or a list.
struct Container {
  bool contains_itself = false;
  std::optional<bool> comes_apart;  // a list, once the walk has looked
};

// Of an entry of the table of containers.
constexpr std::uint64_t kContainerBytes = 48;
// Of an entry of KeyNames, without the heap's share of the name.
constexpr std::uint64_t kKeyNameBytes = sizeof(std::string) + 64;
// Of a leaf as FlatEntry, as StateFile::Entry and in StateFile's table of names, without the heap's share of path and
// name.
constexpr std::uint64_t kLeafBytes = sizeof(FlatEntry) + 256;

// The dicts whose entries are the entries of a mapping.
struct Mapping {
  std::optional<Node> argument;  // of a Counter, or of any call with a dict
  std::optional<Node> items;     // key, value, key, value, ...
  std::optional<Node> pairs;     // [[key, value], ...]: the argument of an OrderedDict of Python 2
};

// Whether Python accepts the arguments for a new mapping: perhaps the factory of a defaultdict, then perhaps a dict.
// Sets `dict` to the dict.
bool are_of_mapping(const Graph& graph, const Elements& arguments, bool has_factory, std::optional<Node>& dict) {
  bool is_factory = has_factory;
  for (const Node argument : arguments) {
    const bool is_dict = graph.is(argument, Kind::kDict);
    if (dict || is_factory == is_dict) return false;
    if (is_dict) dict = argument;
    is_factory = false;
  }
  return true;
}

std::optional<Mapping> mapping_of(const Graph& graph, Node node) {
  if (graph.is(node, Kind::kDict)) return Mapping{std::nullopt, node, std::nullopt};
  if (!graph.is(node, Kind::kCall)) return std::nullopt;
  const Node callable = graph.callable(node);
  const bool is_ordered = graph.is_global(callable, "collections", "OrderedDict");
  const bool is_default = graph.is_global(callable, "collections", "defaultdict");
  const bool is_counter = graph.is_global(callable, "collections", "Counter");
  if (!is_ordered && !is_default && !is_counter) return std::nullopt;
  Mapping mapping;
  const Elements arguments = graph.elements(graph.arguments(node));
  if (is_ordered && arguments.size() == 1 && graph.is(arguments.front(), Kind::kList)) {
    mapping.pairs = arguments.front();
  } else if (!are_of_mapping(graph, arguments, is_default, mapping.argument)) {
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
  enum class Wanted : std::uint8_t { kLeaves, kAttributes };
  Flattening(const Graph& graph, ByteBudget& budget, Wanted wanted) : graph_(graph), budget_(budget), wanted_(wanted) {}
  // The shape alone is wanted, and run() returns no entries.
  Flattening(const Graph& graph, ByteBudget& budget, NestedShape& shape, pickle::Resolver* resolver)
      : graph_(graph), budget_(budget), shape_(&shape), resolver_(resolver) {}

  Result<std::vector<FlatEntry>> run(const StateAround& around_root) {
    if (around_root.item) return run_item(*around_root.item);
    const std::optional<Mapping> mapping = mapping_of(graph_, graph_.root());
    if (!mapping) {
      return Error(ErrorCode::kUnsupported, "the file holds no state dict; torch.load reads it")
          .expected("a dict")
          .actual(class_of(graph_, graph_.root()));
    }
    std::vector<std::uint64_t> around;
    CAIRN_TRY(find_cycles(graph_.root(), around));
    CAIRN_TRY(walk_mapping(graph_.root(), *mapping));
    return std::move(entries_);
  }

 private:
  Result<std::vector<FlatEntry>> run_item(const std::string& item) {
    path_.emplace_back(item);
    std::vector<std::uint64_t> around;
    CAIRN_TRY(find_cycles(graph_.root(), around));
    CAIRN_TRY(walk(graph_.root()));
    return std::move(entries_);
  }

  // Notes containers that contain themselves, on each cycle at least one: walk() takes these for leaves. `around` are
  // the containers around the node. A container deeper than allowed is left to walk().
  Result<void> find_cycles(Node node, std::vector<std::uint64_t>& around) {
    const std::optional<Mapping> mapping = mapping_of(graph_, node);
    if (!mapping && !graph_.is(node, Kind::kList)) return {};
    const auto [place, is_new] = containers_.try_emplace(node.bits());
    if (!is_new) {
      const auto first = std::find(around.begin(), around.end(), node.bits());
      std::for_each(first, around.end(), [&](std::uint64_t bits) { containers_[bits].contains_itself = true; });
      return {};
    }
    CAIRN_TRY(budget_.charge(kContainerBytes));
    if (around.size() > pickle::kValueDepthMax) return {};
    around.push_back(node.bits());
    if (mapping) {
      CAIRN_TRY(for_each_entry(*mapping, [&](Node, Node value) { return find_cycles(value, around); }));
    } else {
      for (const Node element : graph_.elements(node)) CAIRN_TRY(find_cycles(element, around));
    }
    around.pop_back();
    return {};
  }

  Result<void> walk_mapping(Node node, const Mapping& mapping) {
    const Inside before = inside_now();
    if (shape_ != nullptr) CAIRN_TRY(note_mapping(node, mapping));
    if (wanted_ == Wanted::kAttributes) CAIRN_TRY(add_attributes(node));
    CAIRN_TRY_ASSIGN(const KeyNames names, names_of_keys(mapping));
    CAIRN_TRY(for_each_entry(mapping, [&](Node key, Node value) { return walk_entry(key, value, names); }));
    return note_container(node, before);
  }

  // What the walk has found so far.
  struct Inside {
    std::size_t leaves = 0;
    std::size_t unheld = 0;
  };
  Inside inside_now() const { return {leaf_count_, shape_ != nullptr ? shape_->unheld.size() : 0}; }

  Result<void> note_container(Node node, const Inside& before) {
    if (shape_ == nullptr || path_.empty() || leaf_count_ == before.leaves) return {};
    CAIRN_TRY(budget_.charge(sizeof(NestedShape::Container) + path_bytes()));
    const bool is_held = shape_->unheld.size() == before.unheld;
    shape_->containers.push_back({path_, node.bits(), before.leaves, leaf_count_, is_held});
    return {};
  }

  Result<void> add_attributes(Node node) {
    if (!graph_.is(node, Kind::kCall) || !graph_.state(node).is_set()) return {};
    CAIRN_TRY(budget_.charge(sizeof(FlatEntry) + path_bytes()));
    entries_.push_back({path_, graph_.state(node)});
    return {};
  }

  // Calls `visit(key, value)`, which returns Result<void>.
  template <typename Visit>
  Result<void> for_each_entry(const Mapping& mapping, const Visit& visit) const {
    if (mapping.argument) CAIRN_TRY(graph_.for_each_item(*mapping.argument, visit));
    if (mapping.pairs) CAIRN_TRY(for_each_pair(*mapping.pairs, visit));
    if (mapping.items) CAIRN_TRY(graph_.for_each_item(*mapping.items, visit));
    return {};
  }

  template <typename Visit>
  Result<void> for_each_pair(Node list, const Visit& visit) const {
    for (const Node pair : graph_.elements(list)) {
      const bool is_row = graph_.is(pair, Kind::kList) || graph_.is(pair, Kind::kTuple);
      if (!is_row || graph_.elements(pair).size() != 2) {
        return Error(ErrorCode::kUnsupported, "an OrderedDict whose argument is no list of pairs")
            .actual(class_of(graph_, pair));
      }
      CAIRN_TRY(visit(*graph_.elements(pair).begin(), *++graph_.elements(pair).begin()));
    }
    return {};
  }

  // A key of text keeps its text. Any other key whose text is taken gets its type as a suffix: "1:int" beside '1'.
  Result<KeyNames> names_of_keys(const Mapping& mapping) {
    std::unordered_map<std::string_view, Node, SeededHash> taken;  // by name: the key
    const auto take_text = [&](Node key, Node) -> Result<void> {
      const std::optional<std::string_view> text = graph_.text_if(key);
      if (!text || taken.emplace(*text, key).second) return {};
      return found_twice(key);
    };
    CAIRN_TRY(for_each_entry(mapping, take_text));
    KeyNames names;
    std::deque<std::string> texts;  // `taken` refers to these
    const auto name_key = [&](Node key, Node) -> Result<void> {
      if (graph_.text_if(key)) return {};
      CAIRN_TRY_ASSIGN(texts.emplace_back(), text_of_key(key));
      bool has_twin = false;
      while (true) {
        const auto [place, is_new] = taken.try_emplace(texts.back(), key);
        if (is_new) break;
        has_twin = true;
        const std::string_view type = key_type(graph_, key);
        if (key_type(graph_, place->second) == type) return found_twice(key);
        texts.emplace_back(texts.back()).append(":").append(type);
      }
      if (!has_twin && graph_.integer_if(key)) return {};
      CAIRN_TRY(budget_.charge(kKeyNameBytes + heap_bytes(texts.back().size())));
      names.emplace(key.bits(), texts.back());
      return {};
    };
    CAIRN_TRY(for_each_entry(mapping, name_key));
    return names;
  }

  // Python's dicts have each key once, except for NaN.
  Error found_twice(Node key) {
    const Result<Value> value = pickle::to_value(graph_, key, budget_);
    return Error(ErrorCode::kUnsupported, "a dict of the state has two keys with one text and one type")
        .key(fqn_of(path_))
        .actual((value ? to_string(*value) : std::string("a key")) + ", twice");
  }

  Result<void> walk_entry(Node key, Node value, const KeyNames& names) {
    if (const auto named = names.find(key.bits()); named != names.end()) {
      path_.emplace_back(named->second);
    } else {
      CAIRN_TRY_ASSIGN(std::string text, text_of_key(key));
      path_.emplace_back(std::move(text));
    }
    if (shape_ != nullptr && !graph_.text_if(key)) CAIRN_TRY(note_key(key));
    CAIRN_TRY(walk(value));
    path_.pop_back();
    return {};
  }

  Result<void> walk(Node node) {
    if (path_.size() > pickle::kValueDepthMax) return too_deep();
    CAIRN_TRY(budget_.charge(sizeof(Node)));
    const auto container = containers_.find(node.bits());
    if (container != containers_.end() && !container->second.contains_itself) {
      if (const std::optional<Mapping> mapping = mapping_of(graph_, node)) return walk_mapping(node, *mapping);
      CAIRN_TRY_ASSIGN(const bool comes_apart, list_comes_apart(node, 0));
      if (comes_apart) return walk_list(node);
    }
    ++leaf_count_;
    if (shape_ != nullptr || wanted_ == Wanted::kAttributes) return {};
    CAIRN_TRY(budget_.charge(kLeafBytes + path_bytes() + name_bytes()));
    entries_.push_back({path_, node});
    return {};
  }

  std::uint64_t path_bytes() const {
    std::uint64_t bytes = path_.size() * sizeof(PathElement);
    for (const PathElement& element : path_) {
      if (const auto* text = std::get_if<std::string>(&element)) bytes += heap_bytes(text->size());
    }
    return bytes;
  }

  // Of the flat key; at most 20 digits for a position.
  std::uint64_t name_bytes() const {
    constexpr std::uint64_t kPositionMax = 20;
    std::uint64_t characters = path_.size();  // the dots
    for (const PathElement& element : path_) {
      const auto* text = std::get_if<std::string>(&element);
      characters += text != nullptr ? text->size() : kPositionMax;
    }
    return heap_bytes(characters);
  }

  Result<void> note_key(Node node) {
    CAIRN_TRY(budget_.charge(sizeof(NestedShape::Key) + path_bytes()));
    CAIRN_TRY_ASSIGN(Value key, pickle::to_value(graph_, node, budget_));
    if (is_key_of_mapping(key)) {
      shape_->keys.push_back({path_, std::move(key)});
    } else {
      shape_->unheld.push_back({path_, "a key that is no plain value"});
    }
    return {};
  }

  Result<void> note_mapping(Node node, const Mapping& mapping) {
    CAIRN_TRY(budget_.charge(sizeof(NestedShape::Ordered) + path_bytes()));
    bool has_entries = false;
    for (const std::optional<Node>& part : {mapping.argument, mapping.items, mapping.pairs}) {
      has_entries |= part && !graph_.elements(*part).empty();
    }
    if (!has_entries && !path_.empty()) shape_->empty.push_back({path_, leaf_count_});
    if (!graph_.is(node, Kind::kCall)) return {};
    if (!graph_.is_global(graph_.callable(node), "collections", "OrderedDict")) {
      shape_->unheld.push_back({path_, "a " + class_of(graph_, node)});
      return {};
    }
    Result<Value> attributes = Value();
    if (graph_.state(node).is_set()) attributes = pickle::to_value(graph_, graph_.state(node), budget_, resolver_);
    if (attributes && first_refused_class(*attributes).empty()) {
      shape_->ordered.push_back({path_, *std::move(attributes)});
    } else {
      shape_->ordered.push_back({path_, Value()});
      shape_->unheld.push_back({path_, "attributes of a collections.OrderedDict"});
    }
    return {};
  }

  Result<void> walk_list(Node list) {
    const Inside before = inside_now();
    std::int64_t position = 0;
    for (const Node node : graph_.elements(list)) {
      path_.emplace_back(position++);
      CAIRN_TRY(walk(node));
      path_.pop_back();
    }
    return note_container(list, before);
  }

  // Whether the list holds a tensor or a mapping, or a list that comes apart. Looks at each list once.
  Result<bool> list_comes_apart(Node list, std::size_t depth) {
    if (depth > pickle::kValueDepthMax) return too_deep();
    std::optional<bool>& comes_apart = containers_[list.bits()].comes_apart;
    if (comes_apart) return *comes_apart;
    comes_apart = false;  // a list that contains itself
    for (const Node node : graph_.elements(list)) {
      bool found = makes_tensor(graph_, node) || mapping_of(graph_, node).has_value();
      if (!found && graph_.is(node, Kind::kList)) {
        CAIRN_TRY_ASSIGN(found, list_comes_apart(node, depth + 1));
      }
      if (!found) continue;
      comes_apart = true;
      return true;
    }
    return false;
  }

  Result<std::string> text_of_key(Node key) {
    if (const std::optional<std::string_view> text = graph_.text_if(key)) return std::string(*text);
    if (const std::optional<std::int64_t> number = graph_.integer_if(key)) return std::to_string(*number);
    CAIRN_TRY_ASSIGN(const Value value, pickle::to_value(graph_, key, budget_));
    std::optional<std::string> text = key_text(value);
    if (!text) {
      return Error(ErrorCode::kUnsupported, "a key of the state dict whose text only Python knows")
          .expected("text, a number, bytes, or a tuple of these")
          .actual(to_string(value));
    }
    CAIRN_TRY(budget_.charge(text->size()));
    return *std::move(text);
  }

  Error too_deep() const {
    return Error(ErrorCode::kUnsupported, "the state dict is nested deeper than allowed")
        .expected("at most " + std::to_string(pickle::kValueDepthMax) + " levels");
  }

  const Graph& graph_;
  ByteBudget& budget_;
  Wanted wanted_ = Wanted::kLeaves;
  NestedShape* shape_ = nullptr;
  pickle::Resolver* resolver_ = nullptr;
  Path path_;
  std::vector<FlatEntry> entries_;
  std::size_t leaf_count_ = 0;
  std::unordered_map<std::uint64_t, Container, SeededHash> containers_;  // by node
};

}  // namespace

Result<std::vector<FlatEntry>> flatten_state(const Graph& graph, ByteBudget& budget, const StateAround& around) {
  return Flattening(graph, budget, Flattening::Wanted::kLeaves).run(around);
}

Result<NestedShape> shape_of_state(const Graph& graph, ByteBudget& budget, pickle::Resolver* resolver,
                                   const StateAround& around) {
  NestedShape shape;
  CAIRN_TRY(Flattening(graph, budget, shape, resolver).run(around));
  return shape;
}

Result<std::vector<FlatEntry>> attributes_of_state(const Graph& graph, ByteBudget& budget, const StateAround& around) {
  return Flattening(graph, budget, Flattening::Wanted::kAttributes).run(around);
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
