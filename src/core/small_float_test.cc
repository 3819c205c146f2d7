#include "core/small_float.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace cairn {
namespace {

constexpr float kInfiniteFloat = std::numeric_limits<float>::infinity();
constexpr Float8 kKinds[] = {Float8::kE4M3FN, Float8::kE5M2, Float8::kE4M3FNUZ, Float8::kE5M2FNUZ, Float8::kE8M0FNU};

TEST(SmallFloat, EveryHalfIsItselfAgain) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const float value = float_from_half(static_cast<std::uint16_t>(bits));
    if (!std::isnan(value)) EXPECT_EQ(half_from_float(value), bits);
  }
}

TEST(SmallFloat, EveryBFloat16IsItselfAgain) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const float value = float_from_bfloat16(static_cast<std::uint16_t>(bits));
    if (!std::isnan(value)) EXPECT_EQ(bfloat16_from_float(value), bits);
  }
}

TEST(SmallFloat, EveryFloat8IsItselfAgain) {
  for (const Float8 kind : kKinds) {
    for (std::uint32_t bits = 0; bits <= 0xFF; ++bits) {
      const float value = float_from_float8(kind, static_cast<std::uint8_t>(bits));
      if (!std::isnan(value)) EXPECT_EQ(float8_from_float(kind, value), bits) << static_cast<int>(kind);
    }
  }
}

TEST(SmallFloat, RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(half_from_float(1.0F + 0x1p-11F), 0x3C00);      // a tie: down to even
  EXPECT_EQ(half_from_float(1.0F + 3 * 0x1p-11F), 0x3C02);  // a tie: up to even
  EXPECT_EQ(half_from_float(1.0F + 0x1.01p-11F), 0x3C01);
  EXPECT_EQ(half_from_float(65519.0F), 0x7BFF);
  EXPECT_EQ(half_from_float(65520.0F), 0x7C00);
  EXPECT_EQ(half_from_float(0x1p-25F), 0x0000);
  EXPECT_EQ(half_from_float(0x1.8p-25F), 0x0001);
  EXPECT_EQ(bfloat16_from_float(1.0F + 0x1p-8F), 0x3F80);
  EXPECT_EQ(bfloat16_from_float(1.0F + 3 * 0x1p-8F), 0x3F82);
}

TEST(SmallFloat, OverflowsAsEachKindSays) {
  EXPECT_EQ(float8_from_float(Float8::kE4M3FN, 448.0F), 0x7E);
  EXPECT_EQ(float8_from_float(Float8::kE4M3FN, 1000.0F), 0x7E);
  EXPECT_EQ(float8_from_float(Float8::kE4M3FN, -kInfiniteFloat), 0xFE);
  EXPECT_EQ(float8_from_float(Float8::kE5M2, kInfiniteFloat), 0x7C);
  EXPECT_EQ(float8_from_float(Float8::kE5M2, 1e9F), 0x7C);
  EXPECT_EQ(float8_from_float(Float8::kE4M3FNUZ, kInfiniteFloat), 0x80);
  EXPECT_EQ(float8_from_float(Float8::kE5M2FNUZ, -0.0F), 0x00);
}

TEST(SmallFloat, KeepsThePayloadOfANaN) {
  const auto bits_of = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  EXPECT_EQ(bits_of(float_from_half(0x7C01)), 0x7FC02000u);  // made quiet
  EXPECT_EQ(bits_of(float_from_float8(Float8::kE4M3FN, 0xFF)), 0xFFF00000u);
  EXPECT_EQ(bits_of(float_from_float8(Float8::kE5M2, 0x7D)), 0x7FE00000u);
  EXPECT_EQ(half_from_float(std::bit_cast<float>(0xFFBE40A8u)), 0xFFF2);
  EXPECT_EQ(half_from_float(std::bit_cast<float>(0x7F800001u)), 0x7E00);
}

}  // namespace
}  // namespace cairn
