#include "format/json/json_reader.h"

#include "core/checked.h"
#include "format/json/utf8.h"

#include <utility>

namespace cairn::json {
namespace {

constexpr unsigned char kFirstPrintable = 0x20;
constexpr std::size_t kFoundCharactersMax = 16;  // quoted in an error

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

Error JsonReader::damaged(std::string_view expected) const {
  const std::string_view rest = text_.substr(position_);
  std::string found = rest.empty() ? "the end of the text" : "'";
  for (const char c : rest.substr(0, kFoundCharactersMax)) {
    found.push_back(static_cast<unsigned char>(c) < kFirstPrintable || static_cast<unsigned char>(c) > '~' ? '?' : c);
  }
  if (!rest.empty()) found.push_back('\'');
  return Error(ErrorCode::kCorrupt, "the JSON text is damaged").offset(offset()).expected(expected).actual(found);
}

void JsonReader::skip_space() {
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') break;
    ++position_;
  }
}

bool JsonReader::take(char c) {
  skip_space();
  if (position_ == text_.size() || text_[position_] != c) return false;
  ++position_;
  return true;
}

Result<void> JsonReader::begin(char open) {
  if (!take(open)) return damaged(open == '{' ? "an object" : "an array");
  if (has_items_.size() == kJsonDepthMax) return damaged("at most 64 nested values");
  has_items_.push_back(false);
  return {};
}

Result<void> JsonReader::begin_object() { return begin('{'); }
Result<void> JsonReader::begin_array() { return begin('['); }

Result<bool> JsonReader::next_item(char close) {
  if (take(close)) {
    has_items_.pop_back();
    return false;
  }
  if (has_items_.back() && !take(',')) return damaged(close == '}' ? "',' or '}'" : "',' or ']'");
  has_items_.back() = true;
  return true;
}

Result<std::optional<std::string>> JsonReader::next_name() {
  CAIRN_TRY_ASSIGN(const bool follows, next_item('}'));
  if (!follows) return std::optional<std::string>();
  CAIRN_TRY_ASSIGN(std::string name, read_string());
  if (!take(':')) return damaged("':'");
  return std::optional(std::move(name));
}

Result<bool> JsonReader::next_element() {
  CAIRN_TRY_ASSIGN(const bool follows, next_item(']'));
  if (!follows) return false;
  skip_space();
  if (position_ < text_.size() && text_[position_] == ']') return damaged("a value");
  return true;
}

Result<std::string> JsonReader::read_string() {
  if (!take('"')) return damaged("a string");
  std::string value;
  while (true) {
    CAIRN_TRY(append_plain(value));
    if (text_[position_++] == '"') return value;
    CAIRN_TRY(append_escape(value));
  }
}

// Up to the next quote or backslash.
Result<void> JsonReader::append_plain(std::string& out) {
  const std::size_t begin = position_;
  for (; position_ < text_.size(); ++position_) {
    const char c = text_[position_];
    if (c == '"' || c == '\\') {
      out.append(text_.substr(begin, position_ - begin));
      return {};
    }
    if (static_cast<unsigned char>(c) < kFirstPrintable) return damaged("an escaped control character");
    if (static_cast<unsigned char>(c) < 0x80) continue;
    const std::size_t length = utf8_length(text_.substr(position_));
    if (length == 0) return damaged("UTF-8");
    position_ += length - 1;
  }
  return damaged("the end of the string");
}

Result<void> JsonReader::append_escape(std::string& out) {
  if (position_ == text_.size()) return damaged("an escape");
  const char c = text_[position_++];
  switch (c) {
    case '"':
    case '\\':
    case '/': out.push_back(c); return {};
    case 'b': out.push_back('\b'); return {};
    case 'f': out.push_back('\f'); return {};
    case 'n': out.push_back('\n'); return {};
    case 'r': out.push_back('\r'); return {};
    case 't': out.push_back('\t'); return {};
    case 'u': break;
    default: --position_; return damaged("an escape");
  }
  CAIRN_TRY_ASSIGN(std::uint32_t code_point, read_hex4());
  if (code_point >= kHighSurrogateMin && code_point <= kSurrogateMax) {
    const bool is_high = code_point < kLowSurrogateMin;
    if (!is_high || !text_.substr(position_).starts_with("\\u")) return damaged("a pair of surrogates");
    position_ += 2;
    CAIRN_TRY_ASSIGN(const std::uint32_t low, read_hex4());
    if (low < kLowSurrogateMin || low > kSurrogateMax) return damaged("a pair of surrogates");
    code_point = kSupplementMin + ((code_point - kHighSurrogateMin) << 10) + (low - kLowSurrogateMin);
  }
  append_utf8(out, code_point);
  return {};
}

Result<std::uint32_t> JsonReader::read_hex4() {
  constexpr std::size_t kDigits = 4;
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < kDigits; ++i, ++position_) {
    const char c = position_ < text_.size() ? text_[position_] : '\0';
    const bool is_letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (!is_digit(c) && !is_letter) return damaged("four hexadecimal digits");
    value = value * 16 + static_cast<std::uint32_t>(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return value;
}

Result<std::uint64_t> JsonReader::read_unsigned() {
  constexpr std::string_view kExpected = "an integer from 0 to 2^64 - 1";
  skip_space();
  const std::size_t begin = position_;
  std::uint64_t value = 0;
  for (; position_ < text_.size() && is_digit(text_[position_]); ++position_) {
    const auto digit = static_cast<std::uint64_t>(text_[position_] - '0');
    const std::optional<std::uint64_t> tens = checked_multiply(value, std::uint64_t{10});
    const std::optional<std::uint64_t> sum = tens ? checked_add(*tens, digit) : std::nullopt;
    if (!sum) return damaged(kExpected);
    value = *sum;
  }
  const std::size_t digits = position_ - begin;
  const char next = position_ < text_.size() ? text_[position_] : '\0';
  if (digits == 0 || next == '.' || next == 'e' || next == 'E') return damaged(kExpected);
  if (digits > 1 && text_[begin] == '0') return damaged("an integer without leading zeros");
  return value;
}

Result<void> JsonReader::skip_number() {
  const auto skip_digits = [&]() -> Result<void> {
    const std::size_t begin = position_;
    while (position_ < text_.size() && is_digit(text_[position_])) ++position_;
    if (position_ == begin) return damaged("a digit");
    return {};
  };
  const auto next_is = [&](std::string_view any) {
    return position_ < text_.size() && any.find(text_[position_]) != std::string_view::npos;
  };
  if (next_is("-")) ++position_;
  const std::size_t begin = position_;
  CAIRN_TRY(skip_digits());
  if (text_[begin] == '0' && position_ - begin > 1) return damaged("a number without leading zeros");
  if (next_is(".")) {
    ++position_;
    CAIRN_TRY(skip_digits());
  }
  if (next_is("eE")) {
    ++position_;
    if (next_is("+-")) ++position_;
    CAIRN_TRY(skip_digits());
  }
  return {};
}

bool JsonReader::take_null() {
  skip_space();
  return skip_word("null").has_value();
}

Result<void> JsonReader::skip_word(std::string_view word) {
  if (!text_.substr(position_).starts_with(word)) return damaged("a value");
  position_ += word.size();
  return {};
}

Result<void> JsonReader::skip_scalar() {
  skip_space();
  const char c = position_ < text_.size() ? text_[position_] : '\0';
  if (allows_non_finite_) {
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
      if (text_.substr(position_).starts_with(word)) return skip_word(word);
    }
  }
  switch (c) {
    case '"': {
      CAIRN_TRY(read_string());
      return {};
    }
    case 't': return skip_word("true");
    case 'f': return skip_word("false");
    case 'n': return skip_word("null");
    default: return is_digit(c) || c == '-' ? skip_number() : damaged("a value");
  }
}

Result<std::string_view> JsonReader::read_value_text() {
  skip_space();
  const std::size_t begin = position_;
  CAIRN_TRY(skip_value());
  return text_.substr(begin, position_ - begin);
}

Result<void> JsonReader::skip_value() {
  std::string open;  // the objects and arrays that began in this call
  do {
    skip_space();
    const char c = position_ < text_.size() ? text_[position_] : '\0';
    if (c == '{' || c == '[') {
      CAIRN_TRY(begin(c));
      open.push_back(c);
    } else {
      CAIRN_TRY(skip_scalar());
    }
    // Ends each object and array without more items.
    while (!open.empty()) {
      bool follows = false;
      if (open.back() == '{') {
        CAIRN_TRY_ASSIGN(const std::optional<std::string> name, next_name());
        follows = name.has_value();
      } else {
        CAIRN_TRY_ASSIGN(follows, next_element());
      }
      if (follows) break;
      open.pop_back();
    }
  } while (!open.empty());
  return {};
}

char JsonReader::peek() {
  skip_space();
  return position_ < text_.size() ? text_[position_] : '\0';
}

Result<void> JsonReader::end() {
  skip_space();
  if (position_ != text_.size()) return damaged("the end of the text");
  return {};
}

}  // namespace cairn::json
