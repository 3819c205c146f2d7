#include "value_json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>
#include <variant>

namespace cairn::cli {
namespace {

void write_items(JsonWriter& json, const std::vector<Value>& items) {
  json.begin_array();
  for (const Value& item : items) write_value(json, item);
  json.end_array();
}

bool has_text_keys(const Dict& dict) {
  return std::all_of(dict.items.begin(), dict.items.end(),
                     [](const auto& item) { return item.first.template get_if<std::string>() != nullptr; });
}

void write_dict(JsonWriter& json, const Dict& dict) {
  json.begin_object();
  for (const auto& [key, value] : dict.items) {
    json.key(*key.get_if<std::string>());
    write_value(json, value);
  }
  json.end_object();
}

void write_text(JsonWriter& json, const Value& value) {
  json.begin_object();
  json.key("type").text(type_name(value));
  json.key("text").text(to_string(value, std::numeric_limits<std::size_t>::max()));
  json.end_object();
}

std::string name_of_array(const Array& array) {
  switch (array.kind) {
    case Array::Kind::kTensor: return "torch.Tensor";
    case Array::Kind::kNumpyScalar: return "numpy." + std::string(name_of(array.dtype));
    default: return "numpy.ndarray";
  }
}

}  // namespace

std::string type_name(const Value& value) {
  return std::visit(
      [](const auto& alternative) -> std::string {
        using T = std::decay_t<decltype(alternative)>;
        if constexpr (std::is_same_v<T, None>) return "NoneType";
        if constexpr (std::is_same_v<T, bool>) return "bool";
        if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, BigInt>) return "int";
        if constexpr (std::is_same_v<T, double>) return "float";
        if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, SharedText>) return "str";
        if constexpr (std::is_same_v<T, Bytes>) return "bytes";
        if constexpr (std::is_same_v<T, Complex>) return "complex";
        if constexpr (std::is_same_v<T, List>) return "list";
        if constexpr (std::is_same_v<T, Tuple>) return "tuple";
        if constexpr (std::is_same_v<T, Set>) return "set";
        if constexpr (std::is_same_v<T, Dict>) return alternative.ordered ? "collections.OrderedDict" : "dict";
        if constexpr (std::is_same_v<T, std::unique_ptr<Array>> || std::is_same_v<T, SharedArray>) {
          return name_of_array(*alternative);
        }
        if constexpr (std::is_same_v<T, std::unique_ptr<Object>>) return alternative->qualified_name();
      },
      value.variant());
}

void write_value(JsonWriter& json, const Value& value) {
  if (value.get_if<None>() != nullptr) return json.null();
  if (const auto* flag = value.get_if<bool>()) return json.boolean(*flag);
  if (const auto* number = value.get_if<std::int64_t>()) return json.number(*number);
  if (const auto* number = value.get_if<double>(); number != nullptr && std::isfinite(*number)) {
    return json.number(*number);
  }
  if (const auto* text = value.get_if<std::string>()) return json.text(*text);
  if (const auto* list = value.get_if<List>()) return write_items(json, list->items);
  if (const auto* tuple = value.get_if<Tuple>()) return write_items(json, tuple->items);
  if (const auto* dict = value.get_if<Dict>(); dict != nullptr && has_text_keys(*dict)) return write_dict(json, *dict);
  write_text(json, value);
}

}  // namespace cairn::cli
