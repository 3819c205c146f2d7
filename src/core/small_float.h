// Small floats: the 16- and 8-bit floating-point encodings, to and from float.
//
// Pure functions. Rounding is to nearest, ties to even; overflow gives torch's result. Not-a-number gives the result of
// torch on a processor with half-precision instructions, including the payload; as bfloat16, not-a-number is 0x7FC0.
#pragma once

#include <bit>
#include <cstdint>

namespace cairn {

// The 16-bit kinds are inline and without branches, for loops over the elements of a tensor.

inline float float_from_half(std::uint16_t bits) {
  constexpr std::uint32_t kRebias = (127 - 15) << 23;
  constexpr std::uint32_t kQuietBit = 1U << 22;
  const std::uint32_t magnitude = bits & 0x7FFFU;
  const std::uint32_t shifted = magnitude << 13;
  const std::uint32_t normal = shifted + kRebias;
  const std::uint32_t special = (shifted + 2 * kRebias) | (magnitude > 0x7C00 ? kQuietBit : 0);
  // A subnormal number is a mantissa without the leading 1, which the subtraction of the leading 1 removes.
  constexpr std::uint32_t kLeadingOne = kRebias + (1U << 23);
  const float difference = std::bit_cast<float>(shifted + kLeadingOne) - std::bit_cast<float>(kLeadingOne);
  const auto subnormal = std::bit_cast<std::uint32_t>(difference);
  const std::uint32_t code = magnitude >= 0x7C00 ? special : magnitude < 0x0400 ? subnormal : normal;
  return std::bit_cast<float>(code | (bits & 0x8000U) << 16);
}

inline std::uint16_t half_from_float(float value) {
  constexpr std::uint32_t kRebias = (127 - 15) << 23;
  constexpr std::uint32_t kAboveHalf = (127 + 16) << 23;       // 2^16
  constexpr std::uint32_t kSmallestNormal = (127 - 14) << 23;  // 2^-14
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  // A carry into the exponent gives the right code, also for numbers that round up to infinity.
  const std::uint32_t normal = (magnitude - kRebias + 0xFFF + (magnitude >> 13 & 1)) >> 13;
  // The addition rounds to a multiple of the smallest half, 2^-24, to nearest and ties to even.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
  // Like processors and torch: the payload is kept as far as the mantissa has room.
  const std::uint32_t special = magnitude > 0x7F800000U ? 0x7E00U | (magnitude >> 13 & 0x3FFU) : 0x7C00U;
  const std::uint32_t code = magnitude >= kAboveHalf ? special : magnitude < kSmallestNormal ? subnormal : normal;
  return static_cast<std::uint16_t>(code | (bits >> 16 & 0x8000U));
}

inline float float_from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t bfloat16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return static_cast<std::uint16_t>(is_nan ? 0x7FC0U : rounded);
}

// The 8-bit kinds differ in the widths of exponent and mantissa, and in the meaning of the highest codes.
enum class Float8 : std::uint8_t { kE4M3FN, kE5M2, kE4M3FNUZ, kE5M2FNUZ, kE8M0FNU };
float float_from_float8(Float8 kind, std::uint8_t bits);
std::uint8_t float8_from_float(Float8 kind, float value);

}  // namespace cairn
