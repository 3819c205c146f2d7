#include "format/torch_file/key_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

namespace cairn::torch_file {
namespace {

constexpr std::size_t kDigitsMax = 4300;    // sys.get_int_max_str_digits()
constexpr std::size_t kBigBytesMax = 1800;  // more bytes have more digits

// repr(): the shortest digits that read back as the same number; with an exponent below 1e-4 and from 1e16 on.
std::string real_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  const double size = std::fabs(number);
  const bool is_fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  std::array<char, 64> buffer{};
  const auto format = is_fixed ? std::chars_format::fixed : std::chars_format::scientific;
  char* const end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number, format).ptr;
  std::string text(buffer.data(), end);
  if (is_fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

// Two's complement, little endian.
std::optional<std::string> big_integer_text(std::string_view bytes) {
  constexpr std::uint32_t kGroup = 1000000000;  // nine digits
  constexpr std::size_t kGroupDigits = 9;
  if (bytes.size() > kBigBytesMax) return std::nullopt;
  std::vector<std::uint8_t> left(bytes.rbegin(), bytes.rend());  // the magnitude, big endian
  const bool is_negative = !left.empty() && (left.front() & 0x80) != 0;
  if (is_negative) {
    unsigned carry = 1;
    for (auto byte = left.rbegin(); byte != left.rend(); ++byte) {
      carry += static_cast<std::uint8_t>(~*byte);
      *byte = static_cast<std::uint8_t>(carry);
      carry >>= 8;
    }
  }
  std::string reversed;
  while (std::any_of(left.begin(), left.end(), [](std::uint8_t byte) { return byte != 0; })) {
    std::uint64_t rest = 0;
    for (std::uint8_t& byte : left) {
      rest = rest << 8 | byte;
      byte = static_cast<std::uint8_t>(rest / kGroup);
      rest %= kGroup;
    }
    for (std::size_t i = 0; i < kGroupDigits; ++i, rest /= 10) reversed += static_cast<char>('0' + rest % 10);
  }
  while (!reversed.empty() && reversed.back() == '0') reversed.pop_back();
  if (reversed.size() > kDigitsMax) return std::nullopt;
  if (reversed.empty()) reversed.push_back('0');
  if (is_negative) reversed += '-';
  return std::string(reversed.rbegin(), reversed.rend());
}

char quote_for(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  return has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
}

void append_escaped(std::string& out, char character, char quote) {
  constexpr std::string_view kHex = "0123456789abcdef";
  const auto code = static_cast<unsigned char>(character);
  if (character == quote || character == '\\') {
    out += {'\\', character};
  } else if (character == '\t') {
    out += "\\t";
  } else if (character == '\n') {
    out += "\\n";
  } else if (character == '\r') {
    out += "\\r";
  } else if (code < 0x20 || code >= 0x7f) {
    out += {'\\', 'x', kHex[code >> 4], kHex[code & 15]};
  } else {
    out += character;
  }
}

std::string quoted_bytes(std::string_view bytes) {
  const char quote = quote_for(bytes);
  std::string out = {'b', quote};
  for (const char character : bytes) append_escaped(out, character, quote);
  return out + quote;
}

// Latin, Cyrillic, kana, Han and Hangul, without characters that repr() escapes.
bool is_printable(char32_t code) {
  struct Range {
    char32_t first;
    char32_t last;
  };
  constexpr std::array kRanges = {Range{0xA1, 0xAC},     Range{0xAE, 0x377},    Range{0x400, 0x52F},
                                  Range{0x3041, 0x3096}, Range{0x30A1, 0x30FF}, Range{0x4E00, 0x9FFC},
                                  Range{0xAC00, 0xD7A3}};
  return std::any_of(kRanges.begin(), kRanges.end(),
                     [code](const Range& range) { return code >= range.first && code <= range.last; });
}

// The character of two or three bytes at the begin of `text`; 0 if there is none.
char32_t character_at(std::string_view text, std::size_t length) {
  if (text.size() < length) return 0;
  const auto low = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i]) & 0x3F); };
  const auto first = static_cast<unsigned char>(text[0]);
  if (length == 2) return static_cast<char32_t>(first & 0x1F) << 6 | low(1);
  return static_cast<char32_t>(first & 0x0F) << 12 | low(1) << 6 | low(2);
}

std::optional<std::string> quoted_text(std::string_view text) {
  const char quote = quote_for(text);
  std::string out(1, quote);
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    if (first < 0x80) {
      append_escaped(out, text[i++], quote);
      continue;
    }
    const std::size_t length = first >= 0xE0 ? 3 : 2;
    if (first >= 0xF0 || !is_printable(character_at(text.substr(i), length))) return std::nullopt;
    out += text.substr(i, length);
    i += length;
  }
  return out + quote;
}

std::optional<std::string> representation(const Value& value);

std::optional<std::string> tuple_text(const Tuple& tuple) {
  std::string out = "(";
  for (const Value& item : tuple.items) {
    const std::optional<std::string> text = representation(item);
    if (!text) return std::nullopt;
    if (out.size() > 1) out += ", ";
    out += *text;
  }
  return out + (tuple.items.size() == 1 ? ",)" : ")");
}

// repr(). Recursion is bounded: readers of values bound their depth.
std::optional<std::string> representation(const Value& value) {
  if (value.get_if<None>() != nullptr) return "None";
  if (const auto* flag = value.get_if<bool>()) return *flag ? "True" : "False";
  if (const auto* number = value.get_if<std::int64_t>()) return std::to_string(*number);
  if (const auto* number = value.get_if<BigInt>()) return big_integer_text(number->data);
  if (const auto* number = value.get_if<double>()) return real_text(*number);
  if (const auto* text = value.get_if<std::string>()) return quoted_text(*text);
  if (const auto* bytes = value.get_if<Bytes>()) return quoted_bytes(bytes->data);
  if (const auto* tuple = value.get_if<Tuple>()) return tuple_text(*tuple);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> key_text(const Value& key) {
  if (const auto* text = key.get_if<std::string>()) return *text;
  return representation(key);
}

std::string_view key_type(const pickle::Graph& graph, pickle::Node key) {
  using pickle::Kind;
  switch (graph.kind(key)) {
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInteger:
    case Kind::kBigInteger: return "int";
    case Kind::kReal: return "float";
    case Kind::kText: return "str";
    case Kind::kBytes:
    case Kind::kCall: return "bytes";  // below protocol 3 a call makes the bytes
    case Kind::kTuple: return "tuple";
    default: return "key";
  }
}

std::string_view key_type(const Value& key) {
  if (key.get_if<None>() != nullptr) return "NoneType";
  if (key.get_if<bool>() != nullptr) return "bool";
  if (key.get_if<std::int64_t>() != nullptr || key.get_if<BigInt>() != nullptr) return "int";
  if (key.get_if<double>() != nullptr) return "float";
  if (key.get_if<std::string>() != nullptr) return "str";
  if (key.get_if<Bytes>() != nullptr) return "bytes";
  if (key.get_if<Tuple>() != nullptr) return "tuple";
  return "key";
}

}  // namespace cairn::torch_file
