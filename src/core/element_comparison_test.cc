#include "core/element_comparison.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <complex>
#include <limits>
#include <vector>

#include "core/small_float.h"

namespace cairn {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <typename T>
Elements elements_of(DType dtype, const std::vector<T>& items) {
  return {dtype, std::as_bytes(std::span(items))};
}

template <typename T>
ElementTally compare(DType dtype, const std::vector<T>& a, const std::vector<T>& b,
                     std::optional<double> tolerance = {}) {
  return compare_elements(elements_of(dtype, a), elements_of(dtype, b), 0, tolerance);
}

TEST(ElementComparison, EqualBitsAreEqualAlsoOfNaN) {
  const std::vector<float> items{1, kNaN, kInfinite, -0.0F};
  const ElementTally tally = compare(DType::kFloat32, items, items);
  EXPECT_EQ(tally.elements, 4U);
  EXPECT_EQ(tally.unequal, 0U);
  EXPECT_EQ(tally.differing, 0U);
  EXPECT_FALSE(tally.largest_at);
}

TEST(ElementComparison, PlaceOfTheLargestDifference) {
  const ElementTally tally = compare<float>(DType::kFloat32, {1, 100, 0.5F, 7}, {1, 104, 0.25F, 7});
  EXPECT_EQ(tally.unequal, 2U);
  EXPECT_EQ(tally.differing, 2U);
  EXPECT_EQ(tally.largest_absolute, 4);
  EXPECT_EQ(tally.largest_at, 1);
  EXPECT_EQ(tally.largest_relative, 0.5);
  EXPECT_EQ(tally.first_differing, 1);
}

TEST(ElementComparison, ZerosOfEitherSign) {
  const ElementTally bits = compare<float>(DType::kFloat32, {0.0F}, {-0.0F});
  EXPECT_EQ(bits.differing, 1U);
  EXPECT_EQ(bits.largest_absolute, 0);
  EXPECT_EQ(bits.largest_relative, 0);
  EXPECT_EQ(compare<float>(DType::kFloat32, {0.0F}, {-0.0F}, 0).differing, 0U);
}

TEST(ElementComparison, NaNsByBitsAndAsNumbers) {
  const float other_nan = std::bit_cast<float>(0x7FC00001U);
  EXPECT_EQ(compare<float>(DType::kFloat32, {kNaN}, {other_nan}).differing, 1U);
  EXPECT_EQ(compare<float>(DType::kFloat32, {kNaN}, {other_nan}).nan_on_one_side, 0U);
  EXPECT_EQ(compare<float>(DType::kFloat32, {kNaN}, {other_nan}, 0).differing, 0U);
  const ElementTally one_side = compare<float>(DType::kFloat32, {kNaN, 1}, {1, kNaN}, 1e9);
  EXPECT_EQ(one_side.differing, 2U);
  EXPECT_EQ(one_side.nan_on_one_side, 2U);
  EXPECT_EQ(one_side.largest_absolute, 0);
}

TEST(ElementComparison, AnInfinityAgreesOnlyWithItself) {
  const ElementTally tally = compare<float>(DType::kFloat32, {kInfinite, kInfinite}, {1, -kInfinite}, 1e300);
  EXPECT_EQ(tally.differing, 2U);
  EXPECT_EQ(tally.largest_absolute, kInfinity);
  EXPECT_EQ(tally.largest_relative, kInfinity);
  EXPECT_FALSE(agree_within(kInfinity, 1, kInfinity));
  EXPECT_TRUE(agree_within(kInfinity, kInfinity, 0));
}

TEST(ElementComparison, DifferenceBeyondEveryDouble) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const ElementTally tally = compare<double>(DType::kFloat64, {kMost}, {-kMost}, 3);
  EXPECT_EQ(tally.largest_absolute, kInfinity);
  EXPECT_EQ(tally.largest_relative, 2);
  EXPECT_EQ(tally.differing, 0U);
  EXPECT_EQ(compare<double>(DType::kFloat64, {kMost}, {-kMost}, 1).differing, 1U);
}

TEST(ElementComparison, ToleranceOfSmallAndLarge) {
  EXPECT_TRUE(agree_within(0.001, 0.002, 0.001));
  EXPECT_TRUE(agree_within(1000, 1001, 0.001));
  EXPECT_FALSE(agree_within(1000, 1002, 0.001));
  EXPECT_FALSE(agree_within(0.5, 0.502, 0.001));
  EXPECT_TRUE(agree_within(0, 0, 0));
  const ElementTally tally = compare<double>(DType::kFloat64, {1, 1}, {1.0005, 1.5}, 0.001);
  EXPECT_EQ(tally.unequal, 2U);
  EXPECT_EQ(tally.differing, 1U);
  EXPECT_EQ(tally.first_differing, 1);
}

TEST(ElementComparison, FloatsOfTwoBytesAndOfOne) {
  const auto half = [](float value) { return half_from_float(value); };
  EXPECT_EQ(compare<std::uint16_t>(DType::kFloat16, {half(1)}, {half(1.5)}).largest_absolute, 0.5);
  const auto brain = [](float value) { return bfloat16_from_float(value); };
  EXPECT_EQ(compare<std::uint16_t>(DType::kBFloat16, {brain(2), brain(kNaN)}, {brain(1), brain(1)}).largest_absolute,
            1);
  constexpr std::pair<DType, Float8> kKinds[] = {{DType::kFloat8E4M3FN, Float8::kE4M3FN},
                                                 {DType::kFloat8E5M2, Float8::kE5M2},
                                                 {DType::kFloat8E4M3FNUZ, Float8::kE4M3FNUZ},
                                                 {DType::kFloat8E5M2FNUZ, Float8::kE5M2FNUZ},
                                                 {DType::kFloat8E8M0FNU, Float8::kE8M0FNU}};
  for (const auto& [dtype, kind] : kKinds) {
    SCOPED_TRACE(name_of(dtype));
    const auto small = [kind = kind](float value) { return float8_from_float(kind, value); };
    const auto tally =
        compare<std::uint8_t>(dtype, {small(4), small(kNaN), small(kNaN)}, {small(1), small(2), small(kNaN)});
    EXPECT_EQ(tally.largest_absolute, 3);
    EXPECT_EQ(tally.largest_relative, 0.75);
    EXPECT_EQ(tally.nan_on_one_side, 1U);
    EXPECT_EQ(tally.differing, 2U);
  }
}

TEST(ElementComparison, ComplexNumbersByTheirDistance) {
  using Complex = std::complex<double>;
  const ElementTally tally = compare<Complex>(DType::kComplex128, {{3, 4}, {0, std::nan("")}, {kInfinity, 1}},
                                              {{0, 0}, {0, 0}, {kInfinity, 2}});
  EXPECT_EQ(tally.largest_absolute, 5);
  EXPECT_EQ(tally.largest_relative, 1);
  EXPECT_EQ(tally.nan_on_one_side, 1U);
  EXPECT_EQ(tally.differing, 3U);
}

TEST(ElementComparison, IntegersHaveNoTolerance) {
  for (const DType dtype : {DType::kInt32, DType::kUInt32}) {
    const ElementTally tally = compare<std::int32_t>(dtype, {1, 2, 3}, {1, 3, 3}, 10);
    EXPECT_EQ(tally.differing, 1U);
    EXPECT_EQ(tally.first_differing, 1);
    EXPECT_EQ(tally.largest_absolute, 0);
  }
  EXPECT_EQ(compare<std::uint8_t>(DType::kBool, {1, 0}, {1, 1}, 10).differing, 1U);
  EXPECT_EQ(compare<std::uint8_t>(DType::kFloat4E2M1FNx2, {0x12}, {0x13}, 10).differing, 1U);
}

TEST(ElementComparison, FloatsOfDifferentDTypes) {
  EXPECT_TRUE(compares_as_numbers(DType::kFloat32, DType::kBFloat16));
  EXPECT_FALSE(compares_as_numbers(DType::kFloat32, DType::kInt32));
  EXPECT_FALSE(compares_as_numbers(DType::kFloat32, DType::kComplex64));
  const std::vector<float> wide{1, 1.001F, -0.0F, kNaN};
  const std::vector<std::uint16_t> narrow{bfloat16_from_float(1), bfloat16_from_float(1), 0, bfloat16_from_float(kNaN)};
  const auto tally =
      compare_elements(elements_of(DType::kFloat32, wide), elements_of(DType::kBFloat16, narrow), 0, std::nullopt);
  EXPECT_EQ(tally.unequal, 1U);
  EXPECT_EQ(tally.first_differing, 1);
}

TEST(ElementComparison, ManyElementsAndTheirSum) {
  std::vector<double> a(5000, 1);
  std::vector<double> b = a;
  b[10] = 2;
  b[4999] = 3;
  b[4998] = 3;
  const ElementTally whole = compare(DType::kFloat64, a, b);
  ElementTally sum;
  for (const std::int64_t begin : {2500, 0}) {
    const auto part = [begin](const std::vector<double>& items) {
      return Elements{DType::kFloat64, std::as_bytes(std::span(items).subspan(static_cast<std::size_t>(begin), 2500))};
    };
    sum.add(compare_elements(part(a), part(b), begin, std::nullopt));
  }
  for (const ElementTally& tally : {whole, sum}) {
    EXPECT_EQ(tally.elements, 5000U);
    EXPECT_EQ(tally.differing, 3U);
    EXPECT_EQ(tally.first_differing, 10);
    EXPECT_EQ(tally.largest_at, 4998);
    EXPECT_EQ(tally.largest_absolute, 2);
  }
}

TEST(ElementComparison, TensorsWithoutElements) { EXPECT_EQ(compare<float>(DType::kFloat32, {}, {}).elements, 0U); }

}  // namespace
}  // namespace cairn
