#include "core/conversion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <complex>
#include <cstring>
#include <random>
#include <vector>

namespace cairn {
namespace {

constexpr auto kLastNumber = static_cast<int>(DType::kFloat8E8M0FNU);
constexpr std::int64_t kCount = 1100;  // more than two groups of elements

std::vector<std::byte> random_bytes(std::size_t count, std::mt19937& random) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// In a loop over many elements, groups and steps change no result.
TEST(Conversion, ConvertsEachElementAsIfAlone) {
  std::mt19937 random(7);
  for (int f = 0; f <= kLastNumber; ++f) {
    for (int t = 0; t <= kLastNumber; ++t) {
      const auto from = static_cast<DType>(f);
      const auto to = static_cast<DType>(t);
      ASSERT_TRUE(is_convertible(from, to));
      SCOPED_TRACE(std::string(name_of(from)) + " to " + std::string(name_of(to)));
      constexpr std::int64_t kFromStep = 2;
      constexpr std::int64_t kToStep = 3;
      const std::vector<std::byte> source = random_bytes(kCount * kFromStep * item_bytes(from), random);
      std::vector<std::byte> together(kCount * kToStep * item_bytes(to));
      std::vector<std::byte> alone = together;
      convert(from, to, {source.data(), kFromStep, together.data(), kToStep}, kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        const ConversionSide element{source.data() + i * kFromStep * item_bytes(from), 1,
                                     alone.data() + i * kToStep * item_bytes(to), 1};
        convert(from, to, element, 1);
      }
      ASSERT_EQ(together, alone);
    }
  }
}

template <typename To, typename From>
To converted(DType from, DType to, From element) {
  To result{};
  convert(from, to, {reinterpret_cast<const std::byte*>(&element), 1, reinterpret_cast<std::byte*>(&result), 1}, 1);
  return result;
}

TEST(Conversion, DropsTheImaginaryPart) {
  using Complex = std::complex<float>;
  const Complex imaginary(0, 2);
  EXPECT_EQ(converted<float>(DType::kComplex64, DType::kFloat32, imaginary), 0);
  EXPECT_EQ(converted<std::uint8_t>(DType::kComplex64, DType::kBool, imaginary), 1);
  EXPECT_EQ(converted<std::uint8_t>(DType::kComplex64, DType::kBool, Complex(0, 0)), 0);
  EXPECT_EQ(converted<std::complex<double>>(DType::kComplex64, DType::kComplex128, imaginary),
            std::complex<double>(0, 2));
  EXPECT_EQ(converted<std::complex<double>>(DType::kInt8, DType::kComplex128, std::int8_t{-3}),
            std::complex<double>(-3, 0));
}

TEST(Conversion, KeepsTheBitsOfNaNsOfRealParts) {
  const std::array<std::uint32_t, 2> signalling{0x7F800001, 0};
  EXPECT_EQ(converted<std::uint32_t>(DType::kComplex64, DType::kFloat32, signalling), 0x7F800001u);
  EXPECT_EQ(converted<std::uint16_t>(DType::kFloat32, DType::kBFloat16, signalling[0]), 0x7FC0u);
}

TEST(Conversion, RealNumberBeyondTheIntegers) {
  EXPECT_EQ((converted<std::int32_t>(DType::kFloat32, DType::kInt32, 1e20F)), INT32_MAX);
  EXPECT_EQ((converted<std::int64_t>(DType::kFloat64, DType::kInt64, -1e20)), INT64_MIN);
  EXPECT_EQ((converted<std::int32_t>(DType::kFloat32, DType::kInt32, std::bit_cast<float>(0x7FC00000u))), 0);
  EXPECT_EQ((converted<std::uint8_t>(DType::kFloat32, DType::kUInt8, 257.0F)), 1);
}

}  // namespace
}  // namespace cairn
