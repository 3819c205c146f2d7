#include "core/nested_shape.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

namespace cairn {
namespace {

Value place_value(const Path& place) {
  Tuple steps;
  for (const PathElement& step : place) {
    steps.items.push_back(std::visit([](const auto& element) { return Value(element); }, step));
  }
  return Value(std::move(steps));
}

// Python writes a place as a tuple; nullopt for all other values.
std::optional<Path> place_in(const Value& value) {
  const auto* steps = value.get_if<Tuple>();
  if (steps == nullptr || steps->items.empty()) return std::nullopt;
  Path place;
  for (const Value& step : steps->items) {
    if (const auto* text = step.get_if<std::string>()) {
      place.emplace_back(*text);
    } else if (const auto* position = step.get_if<std::int64_t>()) {
      place.emplace_back(*position);
    } else {
      return std::nullopt;
    }
  }
  return place;
}

bool add_key(const Value& pair, NestedShape& shape) {
  const auto* parts = pair.get_if<Tuple>();
  if (parts == nullptr || parts->items.size() != 2 || !is_key_of_mapping(parts->items[1])) return false;
  std::optional<Path> place = place_in(parts->items[0]);
  if (!place) return false;
  shape.keys.push_back({*std::move(place), parts->items[1]});
  return true;
}

bool add_empty(const Value& value, NestedShape& shape) {
  std::optional<Path> place = place_in(value);
  if (!place) return false;
  shape.empty.push_back({*std::move(place), std::numeric_limits<std::size_t>::max()});
  return true;
}

// Sets `before` of each empty mapping, and sorts the mappings by the number.
bool set_positions(const List& positions, NestedShape& shape) {
  if (positions.items.size() != shape.empty.size()) return false;
  for (std::size_t i = 0; i < shape.empty.size(); ++i) {
    const auto* before = positions.items[i].get_if<std::int64_t>();
    if (before == nullptr || *before < 0) return false;
    shape.empty[i].before = static_cast<std::size_t>(*before);
  }
  std::stable_sort(shape.empty.begin(), shape.empty.end(),
                   [](const auto& a, const auto& b) { return a.before < b.before; });
  return true;
}

}  // namespace

bool is_key_of_mapping(const Value& value) {
  if (const auto* tuple = value.get_if<Tuple>()) {
    return std::all_of(tuple->items.begin(), tuple->items.end(), is_key_of_mapping);
  }
  const bool is_container = value.get_if<List>() != nullptr || value.get_if<Set>() != nullptr ||
                            value.get_if<Dict>() != nullptr || value.get_if<Array>() != nullptr;
  return !is_container && value.object() == nullptr;
}

Value shape_value(const NestedShape& shape) {
  List keys;
  for (const NestedShape::Key& key : shape.keys) {
    Tuple pair;
    pair.items.push_back(place_value(key.place));
    pair.items.push_back(key.key);
    keys.items.emplace_back(std::move(pair));
  }
  List empty;
  List positions;
  bool has_positions = !shape.empty.empty();
  for (const NestedShape::Empty& mapping : shape.empty) {
    empty.items.push_back(place_value(mapping.place));
    has_positions &= mapping.before != std::numeric_limits<std::size_t>::max();
    positions.items.emplace_back(static_cast<std::int64_t>(mapping.before));
  }
  Tuple value;
  value.items.emplace_back(std::move(keys));
  value.items.emplace_back(std::move(empty));
  if (has_positions) value.items.emplace_back(std::move(positions));
  return Value(std::move(value));
}

Result<NestedShape> shape_in(const Value& value) {
  NestedShape shape;
  const auto* parts = value.get_if<Tuple>();
  const std::size_t count = parts != nullptr ? parts->items.size() : 0;
  const bool has_positions = count == 3;
  const auto* keys = count == 2 || has_positions ? parts->items[0].get_if<List>() : nullptr;
  const auto* empty = count == 2 || has_positions ? parts->items[1].get_if<List>() : nullptr;
  const auto* positions = has_positions ? parts->items[2].get_if<List>() : nullptr;
  bool is_valid = keys != nullptr && empty != nullptr && has_positions == (positions != nullptr);
  if (is_valid) {
    for (const Value& pair : keys->items) is_valid &= add_key(pair, shape);
    for (const Value& place : empty->items) is_valid &= add_empty(place, shape);
    if (is_valid && has_positions) is_valid = set_positions(*positions, shape);
  }
  if (is_valid) return shape;
  return Error(ErrorCode::kCorrupt, "the value is not of the form that Cairn writes under this key")
      .key(kNestedShapeKey)
      .actual(to_string(value));
}

}  // namespace cairn
