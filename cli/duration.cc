#include "duration.h"

#include <charconv>
#include <cstdint>
#include <system_error>

namespace cairn::cli {
namespace {

std::int64_t seconds_of(char unit) {
  switch (unit) {
    case 's': return 1;
    case 'm': return 60;
    case 'h': return std::int64_t{60} * 60;
    case 'd': return std::int64_t{60} * 60 * 24;
    case 'w': return std::int64_t{60} * 60 * 24 * 7;
    default: return 0;
  }
}

}  // namespace

std::optional<std::chrono::seconds> duration_of(std::string_view text) {
  constexpr std::int64_t kMax = 1'000'000'000'000;  // of any unit; far from the end of the clock
  std::int64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end + 1 != text.data() + text.size()) return std::nullopt;
  const std::int64_t unit = seconds_of(*end);
  if (unit == 0 || number <= 0 || number > kMax / unit) return std::nullopt;
  return std::chrono::seconds(number * unit);
}

}  // namespace cairn::cli
