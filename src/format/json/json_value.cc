#include "format/json/json_value.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/seeded_hash.h"
#include "format/json/json_reader.h"
#include "format/pickle/decimal_integer.h"

namespace cairn::json {
namespace {

Result<Value> read_any(JsonReader& reader);

// Recurses at most kJsonDepthMax times: the reader refuses deeper texts.
Result<Value> read_object(JsonReader& reader) {
  Dict dict;
  std::unordered_map<std::string, std::size_t, SeededHash> places;
  CAIRN_TRY(reader.begin_object());
  while (true) {
    CAIRN_TRY_ASSIGN(std::optional<std::string> name, reader.next_name());
    if (!name) return Value(std::move(dict));
    CAIRN_TRY_ASSIGN(Value value, read_any(reader));
    const auto [place, is_new] = places.try_emplace(*name, dict.items.size());
    if (is_new) {
      dict.items.emplace_back(Value(*std::move(name)), std::move(value));
    } else {
      dict.items[place->second].second = std::move(value);
    }
  }
}

Result<Value> read_list(JsonReader& reader) {
  List list;
  CAIRN_TRY(reader.begin_array());
  while (true) {
    CAIRN_TRY_ASSIGN(const bool follows, reader.next_element());
    if (!follows) return Value(std::move(list));
    CAIRN_TRY_ASSIGN(Value value, read_any(reader));
    list.items.push_back(std::move(value));
  }
}

Result<Value> read_number(const JsonReader& reader, std::string_view text) {
  if (text == "NaN") return Value(std::numeric_limits<double>::quiet_NaN());
  if (text.ends_with("Infinity")) {
    const double infinity = std::numeric_limits<double>::infinity();
    return Value(text.starts_with('-') ? -infinity : infinity);
  }
  if (text.find_first_of(".eE") == std::string_view::npos) {
    std::int64_t integer = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), integer);
    if (parsed.ec == std::errc()) return Value(integer);
    const std::optional<std::vector<std::byte>> bytes = pickle::decimal_integer(text);
    if (!bytes) return reader.damaged("an integer of at most " + std::to_string(pickle::kDecimalDigitsMax) + " digits");
    return Value(BigInt{std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size())});
  }
  double real = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), real);
  // Beyond the range of a double, from_chars() leaves `real`: Python gives 0 or an infinity.
  if (parsed.ec == std::errc::result_out_of_range) real = std::strtod(std::string(text).c_str(), nullptr);
  return Value(real);
}

Result<Value> read_any(JsonReader& reader) {
  const char first = reader.peek();
  if (first == '{') return read_object(reader);
  if (first == '[') return read_list(reader);
  if (first == '"') {
    CAIRN_TRY_ASSIGN(std::string text, reader.read_string());
    return Value(std::move(text));
  }
  CAIRN_TRY_ASSIGN(const std::string_view text, reader.read_value_text());
  if (text == "null") return Value();
  if (text == "true") return Value(true);
  if (text == "false") return Value(false);
  return read_number(reader, text);
}

}  // namespace

Result<Value> read_json_value(std::string_view text) {
  JsonReader reader(text, 0);
  reader.allow_non_finite();
  CAIRN_TRY_ASSIGN(Value value, read_any(reader));
  CAIRN_TRY(reader.end());
  return value;
}

}  // namespace cairn::json
