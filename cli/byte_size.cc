#include "byte_size.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <system_error>
#include <utility>

namespace cairn::cli {
namespace {

// Takes the digits of ".75" from the text: 75 and 100. 0 and 1 without a point; nullopt for more than 6 digits, or
// none.
std::optional<std::pair<std::uint64_t, std::uint64_t>> take_fraction(std::string_view& text) {
  constexpr std::size_t kDigitsMax = 6;
  std::pair<std::uint64_t, std::uint64_t> fraction{0, 1};
  if (!text.starts_with('.')) return fraction;
  text.remove_prefix(1);
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0 || digits > kDigitsMax) return std::nullopt;
  for (const char digit : text.substr(0, digits)) {
    fraction.first = fraction.first * 10 + static_cast<std::uint64_t>(digit - '0');
    fraction.second *= 10;
  }
  text.remove_prefix(digits);
  return fraction;
}

}  // namespace

std::string lower_case(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

std::optional<std::uint64_t> bytes_of(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, std::uint64_t>, 9> kUnits{{{"", 1},
                                                                              {"b", 1},
                                                                              {"kb", 1'000},
                                                                              {"mb", 1'000'000},
                                                                              {"gb", 1'000'000'000},
                                                                              {"tb", 1'000'000'000'000},
                                                                              {"kib", std::uint64_t{1} << 10},
                                                                              {"mib", std::uint64_t{1} << 20},
                                                                              {"gib", std::uint64_t{1} << 30}}};
  std::uint64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  const auto fraction = take_fraction(text);
  const std::string unit = lower_case(std::string(text));
  for (const auto& [name, bytes] : kUnits) {
    if (!fraction || unit != name || number >= UINT64_MAX / bytes) continue;
    const std::uint64_t sum = number * bytes + fraction->first * bytes / fraction->second;
    if (sum > 0) return sum;
  }
  return std::nullopt;
}

}  // namespace cairn::cli
