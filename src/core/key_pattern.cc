#include <cairn/catalog.h>
#include <cairn/state_dict.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace cairn {
namespace {

// A byte that begins no UTF-8 character counts as a character above all code points.
constexpr std::uint32_t kBytes = 0x110000;

// Removes the next character of `text`, which is not empty, and returns its code point.
std::uint32_t take_character(std::string_view& text) {
  const auto byte = static_cast<unsigned char>(text.front());
  const auto character = first_character(text).value_or(Utf8Character{kBytes + byte, 1});
  text.remove_prefix(character.bytes);
  return character.code_point;
}

// Removes a set in brackets, after its '[', from `pattern`, and returns whether `point` is in the set. Nullopt if the
// ']' is missing.
std::optional<bool> take_set(std::string_view& pattern, std::uint32_t point) {
  std::string_view rest = pattern;
  const bool is_negated = !rest.empty() && rest.front() == '!';
  if (is_negated) rest.remove_prefix(1);
  bool is_member = false;
  for (bool is_first = true; !rest.empty(); is_first = false) {
    const std::uint32_t low = take_character(rest);
    if (low == ']' && !is_first) {
      pattern = rest;
      return is_member != is_negated;
    }
    std::uint32_t high = low;
    if (rest.size() >= 2 && rest[0] == '-' && rest[1] != ']') {
      rest.remove_prefix(1);
      high = take_character(rest);
    }
    is_member = is_member || (low <= point && point <= high);
  }
  return std::nullopt;
}

// Whether the first element of `pattern`, which is not empty and not a star, matches the first character of `key`.
// Removes both if they match.
bool take_both(std::string_view& pattern, std::string_view& key) {
  if (key.empty()) return false;
  std::string_view pattern_rest = pattern, key_rest = key;
  const std::uint32_t point = take_character(key_rest);
  const std::uint32_t wanted = take_character(pattern_rest);
  bool is_taken = false;
  if (wanted == '?') {
    is_taken = true;
  } else if (wanted == '[') {
    is_taken = take_set(pattern_rest, point).value_or(point == '[');
  } else if (wanted == '\\' && !pattern_rest.empty()) {
    is_taken = take_character(pattern_rest) == point;
  } else {
    is_taken = wanted == point;
  }
  if (!is_taken) return false;
  pattern = pattern_rest;
  key = key_rest;
  return true;
}

}  // namespace

bool matches_key(std::string_view pattern, std::string_view key) {
  // Only the last star is retried with a longer run: a longer run for an earlier star cannot match more.
  std::optional<std::string_view> after_star;
  std::string_view key_of_star;
  while (true) {
    if (pattern.empty() && (key.empty() || key.front() == '.')) return true;
    if (!pattern.empty() && pattern.front() == '*') {
      pattern.remove_prefix(1);
      if (pattern.empty()) return true;
      after_star = pattern;
      key_of_star = key;
      continue;
    }
    if (!pattern.empty() && take_both(pattern, key)) continue;
    if (!after_star || key_of_star.empty()) return false;
    take_character(key_of_star);
    pattern = *after_star;
    key = key_of_star;
  }
}

bool selects_key(std::span<const std::string> patterns, std::string_view key) {
  const auto matches = [key](const std::string& pattern) { return matches_key(pattern, key); };
  return patterns.empty() || std::any_of(patterns.begin(), patterns.end(), matches);
}

}  // namespace cairn
