#include "inspect/attribute_comparison.h"

#include <map>
#include <utility>

#include "core/place_text.h"
#include "core/value_comparison.h"
#include "format/torch_file/storage_walk.h"

namespace cairn::checkpointer {
namespace {

using torch_file::StateFile;
using Kind = KeyDifference::Kind;

// The attributes of a tensor or dict without any are an empty dict.
Result<Value> read_or_empty(const StateFile& file, pickle::Node node) {
  if (!node.is_set()) return Value(Dict());
  return file.read_attributes(node);
}

// Attributes that only one file has count if they name stored bytes. Plain ones are a part of the class, such as
// OrderedDict, which no other format keeps.
Result<bool> are_compared(const StateFile& a, pickle::Node node_a, const StateFile& b, pickle::Node node_b) {
  if (node_a.is_set() == node_b.is_set()) return node_a.is_set();
  torch_file::StorageWalk walk = (node_a.is_set() ? a : b).new_walk();
  bool has_storage = false;
  CAIRN_TRY(walk.walk(node_a.is_set() ? node_a : node_b, [&](const torch_file::StorageWalk::Found&) -> Result<void> {
    has_storage = true;
    return {};
  }));
  return has_storage;
}

std::optional<KeyDifference> difference_of(const std::string& key, const Value& a, const Value& b,
                                           std::optional<double> tolerance) {
  std::optional<ValueDifference> found = first_difference(a, b, tolerance);
  if (!found) return std::nullopt;
  return KeyDifference{key, Kind::kValue, std::move(found->a), std::move(found->b), std::move(found->place), {}};
}

// In a form that Cairn does not decode: only equal bytes show that two tensors are equal.
Result<std::optional<KeyDifference>> compare_payloads(const StateFile& a, const StateFile& b, const std::string& key) {
  CAIRN_TRY_ASSIGN(const std::string payload_a, a.payload(*a.find(key)));
  CAIRN_TRY_ASSIGN(const std::string payload_b, b.payload(*b.find(key)));
  if (payload_a == payload_b) return std::optional<KeyDifference>();
  const auto text = [](const std::string& bytes) { return "<" + std::to_string(bytes.size()) + " stored bytes>"; };
  return std::optional(KeyDifference{key, Kind::kValue, text(payload_a), text(payload_b), {}, {}});
}

// The attributes of the dicts at one place; unset nodes where a file has none.
struct DictPair {
  Path place;
  pickle::Node a;
  pickle::Node b;
};

// By name; null for a value that is no dict with names.
std::optional<std::map<std::string, const Value*>> by_name(const Value& attributes) {
  std::map<std::string, const Value*> named;
  const auto* const dict = attributes.get_if<Dict>();
  if (dict == nullptr) return std::nullopt;
  for (const auto& [key, value] : dict->items) {
    const auto* const name = key.get_if<std::string>();
    if (name == nullptr || !named.emplace(*name, &value).second) return std::nullopt;
  }
  return named;
}

class DictComparison {
 public:
  DictComparison(const std::function<bool(std::string_view)>& is_selected, std::optional<double> tolerance)
      : is_selected_(is_selected), tolerance_(tolerance) {}

  void compare(const Path& place, const Value& a, const Value& b) {
    const auto names_a = by_name(a);
    const auto names_b = by_name(b);
    if (!names_a || !names_b) return compare_one(key_of(place, "__dict__"), &a, &b);
    for (const auto& [name, value] : *names_a) {
      const auto other = names_b->find(name);
      compare_one(key_of(place, name), value, other != names_b->end() ? other->second : nullptr);
    }
    for (const auto& [name, value] : *names_b) {
      if (!names_a->contains(name)) compare_one(key_of(place, name), nullptr, value);
    }
  }

  std::vector<KeyDifference> take() && { return std::move(differences_); }

 private:
  static std::string key_of(Path place, const std::string& name) {
    place.emplace_back(name);
    return fqn_of(place);
  }

  void compare_one(const std::string& key, const Value* a, const Value* b) {
    if (!is_selected_(key)) return;
    if (a == nullptr || b == nullptr) {
      const std::string text = "an attribute";
      differences_.push_back({key,
                              b == nullptr ? Kind::kOnlyInA : Kind::kOnlyInB,
                              a != nullptr ? text : "",
                              b != nullptr ? text : "",
                              {},
                              {}});
    } else if (auto found = difference_of(key, *a, *b, tolerance_)) {
      differences_.push_back(*std::move(found));
    }
  }

  const std::function<bool(std::string_view)>& is_selected_;
  std::optional<double> tolerance_;
  std::vector<KeyDifference> differences_;
};

}  // namespace

Result<std::optional<KeyDifference>> compare_tensor_attributes(const StateFile& a, const StateFile& b,
                                                               const std::string& key,
                                                               std::optional<double> tolerance) {
  const pickle::Node node_a = a.attributes_of(*a.find(key));
  const pickle::Node node_b = b.attributes_of(*b.find(key));
  CAIRN_TRY_ASSIGN(const bool compared, are_compared(a, node_a, b, node_b));
  if (!compared) return std::optional<KeyDifference>();
  const Result<Value> value_a = read_or_empty(a, node_a);
  const Result<Value> value_b = read_or_empty(b, node_b);
  for (const Result<Value>* value : {&value_a, &value_b}) {
    if (!*value && value->error().code() != ErrorCode::kUnsupported) return Error(value->error()).key(key);
  }
  if (!value_a || !value_b) return compare_payloads(a, b, key);
  return difference_of(key, *value_a, *value_b, tolerance);
}

Result<std::vector<KeyDifference>> compare_dict_attributes(const StateFile& a, const StateFile& b,
                                                           const std::function<bool(std::string_view)>& is_selected,
                                                           std::optional<double> tolerance) {
  CAIRN_TRY_ASSIGN(const std::vector<torch_file::FlatEntry> of_a, a.attributes_of_dicts());
  CAIRN_TRY_ASSIGN(const std::vector<torch_file::FlatEntry> of_b, b.attributes_of_dicts());
  std::map<std::string, DictPair> pairs;
  const auto pair_at = [&pairs](const Path& place) -> DictPair& {
    DictPair& pair = pairs[place_text(place)];
    pair.place = place;
    return pair;
  };
  for (const torch_file::FlatEntry& it : of_a) pair_at(it.path).a = it.node;
  for (const torch_file::FlatEntry& it : of_b) pair_at(it.path).b = it.node;
  DictComparison comparison(is_selected, tolerance);
  for (const auto& [text, pair] : pairs) {
    const auto located = [&place = pair.place](Error error) {
      return place.empty() ? error : std::move(error).key(fqn_of(place));
    };
    CAIRN_TRY_ASSIGN(const bool compared, are_compared(a, pair.a, b, pair.b));
    if (!compared) continue;
    const Result<Value> value_a = read_or_empty(a, pair.a);
    if (!value_a) return located(value_a.error());
    const Result<Value> value_b = read_or_empty(b, pair.b);
    if (!value_b) return located(value_b.error());
    comparison.compare(pair.place, *value_a, *value_b);
  }
  return std::move(comparison).take();
}

}  // namespace cairn::checkpointer
