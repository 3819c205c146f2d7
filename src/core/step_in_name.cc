#include "core/step_in_name.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "core/whole_number.h"

namespace cairn {
namespace {

constexpr std::string_view kStep = "step";
constexpr std::string_view kSeparators = "-_=. ";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The first digits of `text`.
std::string_view digits_of(std::string_view text) {
  const auto* const end = std::find_if_not(text.begin(), text.end(), is_digit);
  return text.substr(0, static_cast<std::size_t>(end - text.begin()));
}

// Without the version that Lightning adds to a name that is taken: "last" of "last-v1.ckpt".
std::string_view without_version(std::string_view name) {
  constexpr std::string_view kSuffix = ".ckpt";
  if (!name.ends_with(kSuffix)) return name;
  const std::string_view stem = name.substr(0, name.size() - kSuffix.size());
  const std::size_t version = stem.rfind("-v");
  if (version == std::string_view::npos || version + 2 == stem.size()) return name;
  return digits_of(stem.substr(version + 2)).size() == stem.size() - version - 2 ? stem.substr(0, version) : name;
}

bool begins_with_step(std::string_view text) {
  constexpr char kLowerCase = 0x20;
  const auto is_letter = [](char expected, char found) { return (found | kLowerCase) == expected; };
  return text.size() >= kStep.size() && std::equal(kStep.begin(), kStep.end(), text.begin(), is_letter);
}

// Whether the text after a number makes it a fraction: .25, but not .0
bool is_fraction(std::string_view after) {
  if (!after.starts_with('.')) return false;
  const std::size_t digit = after.find_first_not_of('0', 1);
  return digit != std::string_view::npos && is_digit(after[digit]);
}

// The digits after the last "step" that has some. Empty if none has.
std::string_view digits_after_step(std::string_view name) {
  for (std::size_t at = name.size(); at-- > 0;) {
    if (!begins_with_step(name.substr(at))) continue;
    std::string_view after = name.substr(at + kStep.size());
    if (after.starts_with('s') || after.starts_with('S')) after.remove_prefix(1);
    if (!after.empty() && kSeparators.find(after.front()) != std::string_view::npos) after.remove_prefix(1);
    const std::string_view digits = digits_of(after);
    if (!digits.empty() && !is_fraction(after.substr(digits.size()))) return digits;
  }
  return {};
}

std::string_view last_digits(std::string_view name) {
  name = without_version(name);
  std::size_t end = name.size();
  while (end > 0 && !is_digit(name[end - 1])) --end;
  std::size_t begin = end;
  while (begin > 0 && is_digit(name[begin - 1])) --begin;
  return name.substr(begin, end - begin);
}

}  // namespace

std::optional<std::uint64_t> step_in_name(const std::filesystem::path& directory) {
  return step_of_name(directory.filename().string());
}

std::optional<std::uint64_t> step_of_name(std::string_view name) {
  constexpr std::size_t kDigitsMax = 18;
  std::string_view digits = digits_after_step(name);
  if (digits.empty()) digits = last_digits(name);
  if (digits.empty() || digits.size() > kDigitsMax) return std::nullopt;
  return whole_number<std::uint64_t>(digits);
}

}  // namespace cairn
