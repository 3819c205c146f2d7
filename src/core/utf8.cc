#include <cairn/state_dict.h>

namespace cairn {
namespace {

// By number of bytes: the bits of the first byte, and the smallest code point of the length.
struct Form {
  std::uint8_t mask;
  std::uint8_t mark;
  std::uint32_t code_point_min;
};
constexpr Form kForms[] = {{0x80, 0x00, 0}, {0xE0, 0xC0, 0x80}, {0xF0, 0xE0, 0x800}, {0xF8, 0xF0, 0x10000}};
constexpr std::uint32_t kCodePointMax = 0x10FFFF;

}  // namespace

std::optional<Utf8Character> first_character(std::string_view text) {
  const auto byte = [&](std::size_t index) { return static_cast<std::uint8_t>(text[index]); };
  for (std::size_t bytes = 1; bytes <= 4; ++bytes) {
    const Form& form = kForms[bytes - 1];
    if ((byte(0) & form.mask) != form.mark) continue;
    if (text.size() < bytes) return std::nullopt;
    std::uint32_t code_point = byte(0) & static_cast<std::uint8_t>(~form.mask);
    for (std::size_t i = 1; i < bytes; ++i) {
      if ((byte(i) & 0xC0) != 0x80) return std::nullopt;
      code_point = code_point << 6 | (byte(i) & 0x3Fu);
    }
    if (code_point < form.code_point_min || code_point > kCodePointMax) return std::nullopt;
    return Utf8Character{code_point, bytes};
  }
  return std::nullopt;
}

}  // namespace cairn
