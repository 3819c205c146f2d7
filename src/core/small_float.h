// Small floats: the 16- and 8-bit floating-point encodings, to and from float.
//
// Pure functions; rounding is to nearest, ties to even, and what overflows becomes what torch makes of it. Not-a-number
// is what torch on a processor with half-precision instructions makes of it, payload included; as bfloat16 it is
// 0x7FC0.
#pragma once

#include <cstdint>

namespace cairn {

float float_from_half(std::uint16_t bits);
std::uint16_t half_from_float(float value);
float float_from_bfloat16(std::uint16_t bits);
std::uint16_t bfloat16_from_float(float value);

// The 8-bit kinds differ in how they spend their bits and their last codes.
enum class Float8 : std::uint8_t { kE4M3FN, kE5M2, kE4M3FNUZ, kE5M2FNUZ, kE8M0FNU };
float float_from_float8(Float8 kind, std::uint8_t bits);
std::uint8_t float8_from_float(Float8 kind, float value);

}  // namespace cairn
