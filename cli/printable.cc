#include "printable.h"

#include <fmt/format.h>

#include <iterator>

#include "utf8.h"

namespace cairn::cli {
namespace {

bool is_harmful(std::uint32_t code_point) {
  const bool is_control = code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0);
  const bool breaks_line = code_point == 0x2028 || code_point == 0x2029;
  const bool turns_direction = code_point == 0x61C || code_point == 0x200E || code_point == 0x200F ||
                               (code_point >= 0x202A && code_point <= 0x202E) ||
                               (code_point >= 0x2066 && code_point <= 0x2069);
  const bool is_half_a_pair = code_point >= 0xD800 && code_point < 0xE000;
  return is_control || breaks_line || turns_direction || is_half_a_pair;
}

}  // namespace

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
    } else if (!is_harmful(character->code_point)) {
      result += bytes;
    } else if (character->code_point < 0x100) {
      fmt::format_to(out, "\\x{:02x}", character->code_point);
    } else {
      fmt::format_to(out, "\\u{:04x}", character->code_point);
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
