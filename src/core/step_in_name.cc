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

bool begins_with_step(std::string_view text) {
  constexpr char kLowerCase = 0x20;
  const auto is_letter = [](char expected, char found) { return (found | kLowerCase) == expected; };
  return text.size() >= kStep.size() && std::equal(kStep.begin(), kStep.end(), text.begin(), is_letter);
}

// The digits after the last "step" that has some. Empty if none has.
std::string_view digits_after_step(std::string_view name) {
  for (std::size_t at = name.size(); at-- > 0;) {
    if (!begins_with_step(name.substr(at))) continue;
    std::string_view after = name.substr(at + kStep.size());
    if (!after.empty() && kSeparators.find(after.front()) != std::string_view::npos) after.remove_prefix(1);
    if (const std::string_view digits = digits_of(after); !digits.empty()) return digits;
  }
  return {};
}

std::string_view last_digits(std::string_view name) {
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
