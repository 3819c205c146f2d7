#include "core/step_in_name.h"

#include <cstddef>
#include <string_view>

#include "core/whole_number.h"

namespace cairn {

std::optional<std::uint64_t> step_in_name(const std::filesystem::path& directory) {
  return last_number_of(directory.filename().string());
}

std::optional<std::uint64_t> last_number_of(std::string_view name) {
  constexpr std::size_t kDigitsMax = 18;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t end = name.size();
  while (end > 0 && !is_digit(name[end - 1])) --end;
  std::size_t begin = end;
  while (begin > 0 && is_digit(name[begin - 1])) --begin;
  if (begin == end || end - begin > kDigitsMax) return std::nullopt;
  return whole_number<std::uint64_t>(name.substr(begin, end - begin));
}

}  // namespace cairn
