#include "core/small_float.h"

#include <cmath>

namespace cairn {
namespace {

constexpr std::uint32_t kFloatMantissaBits = 23;
constexpr std::uint32_t kFloatBias = 127;
constexpr std::uint32_t kFloatInfinity = 0x7F800000u;
constexpr std::uint32_t kFloatMantissaMask = (1u << kFloatMantissaBits) - 1;
constexpr std::uint32_t kFloatQuietBit = 1u << (kFloatMantissaBits - 1);
// Torch's NaN for the kinds with a single NaN, without infinities and without a sign for NaN.
constexpr std::uint32_t kFloatOfOnlyNaN = kFloatInfinity | 1;

// An IEEE-like encoding of 8 bits.
struct Float8Encoding {
  std::uint32_t exponent_bits;
  std::uint32_t mantissa_bits;
  std::uint32_t bias;
  std::uint32_t largest;   // code of the largest finite number
  std::uint32_t overflow;  // code for larger numbers, including infinities
  std::uint32_t nan;       // code for not-a-number
  bool signed_specials;    // zero, overflow and nan have a sign bit
};

constexpr Float8Encoding kE4M3FN{4, 3, 7, 0x7E, 0x7E, 0x7F, true};  // saturates, also for infinities (torch 2.13)
constexpr Float8Encoding kE5M2{5, 2, 15, 0x7B, 0x7C, 0x7F, true};
constexpr Float8Encoding kE4M3FNUZ{4, 3, 8, 0x7F, 0x80, 0x80, false};
constexpr Float8Encoding kE5M2FNUZ{5, 2, 16, 0x7F, 0x80, 0x80, false};

const Float8Encoding& encoding_of(Float8 kind) {
  switch (kind) {
    case Float8::kE4M3FN: return kE4M3FN;
    case Float8::kE5M2: return kE5M2;
    case Float8::kE4M3FNUZ: return kE4M3FNUZ;
    default: return kE5M2FNUZ;
  }
}

// The magnitude code of |value|, rounded to nearest even; may exceed `largest`.
std::uint32_t round_magnitude(const Float8Encoding& encoding, std::uint32_t magnitude_bits) {
  const std::uint32_t dropped = kFloatMantissaBits - encoding.mantissa_bits;
  std::uint32_t mantissa = magnitude_bits & kFloatMantissaMask;
  const auto float_exponent = static_cast<std::int32_t>(magnitude_bits >> kFloatMantissaBits);
  std::int32_t exponent =
      float_exponent - static_cast<std::int32_t>(kFloatBias) + static_cast<std::int32_t>(encoding.bias);
  if (float_exponent == 0) return 0;  // far below the smallest number of all encodings
  mantissa |= 1u << kFloatMantissaBits;
  std::uint32_t shift = dropped;
  if (exponent <= 0) {  // subnormal in the encoding: the leading 1 moves into the mantissa
    shift += static_cast<std::uint32_t>(1 - exponent);
    if (shift > kFloatMantissaBits + 1) return 0;
    exponent = 0;
  } else {
    mantissa &= kFloatMantissaMask;
  }
  const std::uint32_t kept = mantissa >> shift;
  const std::uint32_t rest = mantissa & ((1u << shift) - 1);
  const std::uint32_t half = 1u << (shift - 1);
  const std::uint32_t code = (static_cast<std::uint32_t>(exponent) << encoding.mantissa_bits) + kept;
  const bool up = rest > half || (rest == half && (code & 1) != 0);
  return code + (up ? 1 : 0);  // a carry into the exponent gives the right code
}

std::uint32_t encode(const Float8Encoding& encoding, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t sign = (bits >> 31) << (encoding.exponent_bits + encoding.mantissa_bits);
  if (magnitude > kFloatInfinity) return encoding.nan | (encoding.signed_specials ? sign : 0);
  const std::uint32_t code = magnitude == kFloatInfinity ? encoding.largest + 1 : round_magnitude(encoding, magnitude);
  if (code > encoding.largest) return encoding.overflow | (encoding.signed_specials ? sign : 0);
  if (code == 0 && !encoding.signed_specials) return 0;
  return code | sign;
}

float decode(const Float8Encoding& encoding, std::uint32_t bits) {
  const std::uint32_t sign_bit = 1u << (encoding.exponent_bits + encoding.mantissa_bits);
  const std::uint32_t magnitude = bits & (sign_bit - 1);
  const bool negative = (bits & sign_bit) != 0;
  const std::uint32_t mantissa = magnitude & ((1u << encoding.mantissa_bits) - 1);
  if (!encoding.signed_specials && bits == encoding.nan) return std::bit_cast<float>(kFloatOfOnlyNaN);
  if (magnitude > encoding.largest) {
    // Codes above `largest`: an infinity if the encoding has infinities; otherwise not-a-number, with its payload.
    const bool infinity = magnitude == encoding.overflow && encoding.overflow != encoding.nan;
    const std::uint32_t payload = mantissa << (kFloatMantissaBits - encoding.mantissa_bits);
    const std::uint32_t special = kFloatInfinity | (infinity ? 0 : kFloatQuietBit | payload);
    return std::bit_cast<float>(special | (negative ? 1u << 31 : 0));
  }
  const std::uint32_t exponent = magnitude >> encoding.mantissa_bits;
  const auto bias = static_cast<int>(encoding.bias + encoding.mantissa_bits);
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - bias)
                                    : std::ldexp(static_cast<float>(mantissa + (1u << encoding.mantissa_bits)),
                                                 static_cast<int>(exponent) - bias);
  return negative ? -value : value;
}

// The code is an exponent: the value is 2^(code - 127). The code 255 is not-a-number.
constexpr std::uint8_t kE8M0NaN = 0xFF;

std::uint8_t encode_e8m0(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t exponent = (bits >> kFloatMantissaBits) & 0xFF;
  if (exponent == kE8M0NaN) return kE8M0NaN;
  const std::uint32_t half = 1u << (kFloatMantissaBits - 1);
  const bool guard = (bits & half) != 0;
  const bool rest = (bits & (half - 1)) != 0;
  const bool odd = exponent > 0;  // the hidden 1 is the last kept bit
  return static_cast<std::uint8_t>(exponent + (guard && (odd || rest) ? 1 : 0));
}

float decode_e8m0(std::uint8_t bits) {
  if (bits == kE8M0NaN) return std::bit_cast<float>(kFloatOfOnlyNaN);
  return std::ldexp(1.0F, static_cast<int>(bits) - static_cast<int>(kFloatBias));
}

}  // namespace

float float_from_float8(Float8 kind, std::uint8_t bits) {
  return kind == Float8::kE8M0FNU ? decode_e8m0(bits) : decode(encoding_of(kind), bits);
}

std::uint8_t float8_from_float(Float8 kind, float value) {
  return kind == Float8::kE8M0FNU ? encode_e8m0(value) : static_cast<std::uint8_t>(encode(encoding_of(kind), value));
}

}  // namespace cairn
