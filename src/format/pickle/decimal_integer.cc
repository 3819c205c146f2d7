#include "format/pickle/decimal_integer.h"

#include <algorithm>
#include <cstdint>

#include "format/pickle/long_integer.h"

namespace cairn::pickle {

std::optional<std::vector<std::byte>> decimal_integer(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  if (text.ends_with('L')) text.remove_suffix(1);
  if (text.empty() || text.size() > kDecimalDigitsMax) return std::nullopt;
  std::vector<std::uint32_t> limbs;  // of the magnitude, the lowest first
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return std::nullopt;
    auto carry = static_cast<std::uint64_t>(digit - '0');
    for (std::uint32_t& limb : limbs) {
      carry += std::uint64_t{limb} * 10;
      limb = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
    if (carry != 0) limbs.push_back(static_cast<std::uint32_t>(carry));
  }
  limbs.push_back(0);  // for the sign
  std::vector<std::byte> bytes;
  bytes.reserve(limbs.size() * sizeof(std::uint32_t));
  std::uint64_t carry = negative ? 1 : 0;
  for (const std::uint32_t limb : limbs) {
    carry += negative ? ~limb : limb;
    for (unsigned shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<std::byte>(carry >> shift & 0xFF));
    carry >>= 32;
  }
  bytes.resize(shortest(bytes).size());
  return bytes;
}

}  // namespace cairn::pickle
