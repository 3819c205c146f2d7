#include "core/step_in_name.h"

#include <cstddef>
#include <string>
#include <string_view>

#include "core/whole_number.h"

namespace cairn {

std::optional<std::uint64_t> step_in_name(const std::filesystem::path& directory) {
  constexpr std::size_t kDigitsMax = 18;
  constexpr std::string_view kDigits = "0123456789";
  const std::string name = directory.filename().string();
  const std::size_t last = name.find_last_of(kDigits);
  if (last == std::string::npos) return std::nullopt;
  const std::size_t before = name.find_last_not_of(kDigits, last);
  const std::size_t first = before == std::string::npos ? 0 : before + 1;
  const std::size_t count = last + 1 - first;
  if (count > kDigitsMax) return std::nullopt;
  return whole_number<std::uint64_t>(std::string_view(name).substr(first, count));
}

}  // namespace cairn
