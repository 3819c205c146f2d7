#include "convert/nested_state.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/seeded_hash.h"
#include "format/pickle/value_reader.h"

namespace cairn::checkpointer {

struct NestedState::Node {
  std::optional<Value> value;  // set: no container, or an empty dict
  std::optional<Value> key;    // in the dict above, in place of the text
  bool is_ordered = false;
  Value attributes;
  bool is_list = false;
  std::uint64_t identity = 0;                                           // Value::identity() of a container
  std::vector<std::pair<PathElement, std::unique_ptr<Node>>> children;  // in the order added
  std::unordered_map<std::string, std::size_t, SeededHash> places;      // by the step's text

  // The child, which is made if it is missing. Null if the step is not of the container's kind.
  Node* child(const PathElement& step) {
    const auto* position = std::get_if<std::int64_t>(&step);
    const bool is_position = position != nullptr;
    if (children.empty()) is_list = is_position;
    if (value || is_list != is_position || (is_position && *position < 0)) return nullptr;
    std::string text = is_position ? std::to_string(*position) : std::get<std::string>(step);
    const auto [place, is_new] = places.try_emplace(std::move(text), children.size());
    if (is_new) children.emplace_back(step, std::make_unique<Node>());
    return children[place->second].second.get();
  }

  Result<Value> take() {
    CAIRN_TRY_ASSIGN(Value taken, take_anew());
    if (identity != 0) taken.set_identity(identity);
    return taken;
  }

  Result<Value> take_anew() {
    if (value && !(is_ordered && value->get_if<Dict>() != nullptr)) return *std::move(value);
    if (is_list) return take_list();
    Dict dict;
    dict.items.reserve(children.size());
    for (auto& [step, node] : children) {
      CAIRN_TRY_ASSIGN(Value made, node->take());
      dict.items.emplace_back(node->key ? *std::move(node->key) : Value(std::get<std::string>(std::move(step))),
                              std::move(made));
    }
    dict.ordered = is_ordered;
    if (!is_ordered || attributes.get_if<None>() != nullptr) return Value(std::move(dict));
    auto object = std::make_unique<Object>();
    object->module = "collections";
    object->name = "OrderedDict";
    object->arguments = Tuple();
    object->items = std::move(dict);
    object->state = std::move(attributes);
    return Value(std::move(object));
  }

  Result<Value> take_list() {
    constexpr std::size_t kGapsMax = 1024;
    std::int64_t last = 0;
    for (const auto& [position, node] : children) last = std::max(last, std::get<std::int64_t>(position));
    if (static_cast<std::uint64_t>(last) > 2 * children.size() + kGapsMax) {
      return Error(ErrorCode::kUnsafe, "a list in the nested state has a position far beyond the number of its parts")
          .expected("about " + std::to_string(children.size()) + " parts")
          .actual("position " + std::to_string(last));
    }
    List list;
    list.items.resize(static_cast<std::size_t>(last) + 1);
    for (auto& [position, node] : children) {
      CAIRN_TRY_ASSIGN(list.items[static_cast<std::size_t>(std::get<std::int64_t>(position))], node->take());
    }
    return Value(std::move(list));
  }
};

NestedState::NestedState() : root_(std::make_unique<Node>()) {}
NestedState::~NestedState() = default;

Result<void> NestedState::add(const Path& path, Value value) {
  if (path.size() >= pickle::kValueDepthMax) {
    return Error(ErrorCode::kUnsupported, "a key nested too deeply")
        .key(fqn_of(path))
        .expected("fewer than " + std::to_string(pickle::kValueDepthMax) + " levels");
  }
  Node* node = root_.get();
  for (const PathElement& step : path) {
    node = node->child(step);
    if (node == nullptr) break;
  }
  if (node == nullptr || node->value || !node->children.empty()) {
    return Error(ErrorCode::kCorrupt, "the nested places of two keys contradict each other").key(fqn_of(path));
  }
  node->value = std::move(value);
  return {};
}

NestedState::Node* NestedState::find(const Path& place) const {
  Node* node = root_.get();
  for (const PathElement& step : place) {
    const auto* position = std::get_if<std::int64_t>(&step);
    if (node->is_list != (position != nullptr)) return nullptr;
    const auto found = node->places.find(position != nullptr ? std::to_string(*position) : std::get<std::string>(step));
    if (found == node->places.end()) return nullptr;
    node = node->children[found->second].second.get();
  }
  return node;
}

void NestedState::set_key(const Path& place, Value key) {
  if (Node* const node = find(place)) node->key = std::move(key);
}

void NestedState::set_ordered(const Path& place, Value attributes) {
  Node* const node = find(place);
  if (node == nullptr || node->is_list) return;
  node->is_ordered = true;
  node->attributes = std::move(attributes);
}

void NestedState::set_object(const Path& place, std::uint64_t identity) {
  Node* const node = find(place);
  if (node != nullptr && !node->value) node->identity = identity;
}

Result<Value> NestedState::take() && { return root_->take(); }

}  // namespace cairn::checkpointer
