#include "printable.h"

#include <cairn/state_dict.h>
#include <fmt/format.h>

#include <iterator>

#include "visible.h"

namespace cairn::cli {
std::string printable(std::string_view text) {
  std::string result;
  const auto out = std::back_inserter(result);
  while (!text.empty()) {
    const auto character = first_character(text);
    const std::string_view bytes = text.substr(0, character ? character->bytes : 1);
    text.remove_prefix(bytes.size());
    if (!character) {
      fmt::format_to(out, "\\x{:02x}", static_cast<unsigned char>(bytes[0]));
    } else if (bytes == "\n") {
      result += "\\n";
    } else if (bytes == "\\") {
      result += "\\\\";
    } else if (is_visible(character->code_point)) {
      result += bytes;
    } else if (character->code_point < 0x100) {
      fmt::format_to(out, "\\x{:02x}", character->code_point);
    } else if (character->code_point < 0x10000) {
      fmt::format_to(out, "\\u{:04x}", character->code_point);
    } else {
      fmt::format_to(out, "\\U{:08x}", character->code_point);
    }
  }
  return result;
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string byte_text(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double amount = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (amount >= 1023.95 && unit + 1 < std::size(kUnits)) {  // 1023.95 would be printed as 1024.0
    amount /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", amount, kUnits[unit]);
}

}  // namespace cairn::cli
