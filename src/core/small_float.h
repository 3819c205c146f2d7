// Small floats: the 16- and 8-bit floating-point encodings, to and from float.
//
// Pure functions. Rounding is to nearest, ties to even; overflow gives torch's result. Not-a-number gives the result of
// torch on a processor with half-precision instructions, including the payload; as bfloat16, not-a-number is 0x7FC0.
#pragma once

#include <cstdint>

namespace cairn {

float float_from_half(std::uint16_t bits);
std::uint16_t half_from_float(float value);
float float_from_bfloat16(std::uint16_t bits);
std::uint16_t bfloat16_from_float(float value);

// The 8-bit kinds differ in the widths of exponent and mantissa, and in the meaning of the highest codes.
enum class Float8 : std::uint8_t { kE4M3FN, kE5M2, kE4M3FNUZ, kE5M2FNUZ, kE8M0FNU };
float float_from_float8(Float8 kind, std::uint8_t bits);
std::uint8_t float8_from_float(Float8 kind, float value);

}  // namespace cairn
