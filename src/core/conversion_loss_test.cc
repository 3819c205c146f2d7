#include "core/conversion_loss.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <limits>
#include <vector>

namespace cairn {
namespace {

ConversionLoss loss_of(std::vector<double> elements, DType from, DType to) {
  std::vector<std::byte> before(elements.size() * item_bytes(from));
  std::vector<std::byte> after(elements.size() * item_bytes(to));
  const auto count = static_cast<std::int64_t>(elements.size());
  convert(DType::kFloat64, from, {reinterpret_cast<const std::byte*>(elements.data()), 1, before.data(), 1}, count);
  const ConversionSide side{before.data(), 1, after.data(), 1};
  convert(from, to, side, count);
  ConversionLoss loss;
  count_losses(from, to, side, count, loss);
  return loss;
}

TEST(ConversionLoss, CountsOverflowsAndUnderflows) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> elements{70000, -70000, 1e-9, 0.5, 0, kInfinity, std::numeric_limits<double>::quiet_NaN()};
  for (const DType from : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
    const ConversionLoss loss = loss_of(elements, from, DType::kFloat16);
    EXPECT_EQ(loss.overflows, 2u) << name_of(from);
    EXPECT_EQ(loss.underflows, 1u) << name_of(from);
    EXPECT_TRUE(loss.has_fraction) << name_of(from);
    EXPECT_TRUE(loss.is_any());
  }
  EXPECT_FALSE(loss_of({0.5, 0, kInfinity}, DType::kFloat32, DType::kFloat16).is_any());
  const ConversionLoss small = loss_of({1e6, 0.1, 1e-9}, DType::kFloat32, DType::kFloat8E4M3FN);
  EXPECT_EQ(small.overflows, 1u);
  EXPECT_EQ(small.underflows, 1u);
}

TEST(ConversionLoss, CountsSaturationAsAnOverflow) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> elements{448, 464, 465, -1000, kInfinity, std::numeric_limits<double>::quiet_NaN()};
  EXPECT_EQ(loss_of(elements, DType::kFloat32, DType::kFloat8E4M3FN).overflows, 3u);
  EXPECT_EQ(loss_of({240, 300, -kInfinity}, DType::kFloat32, DType::kFloat8E4M3FNUZ).overflows, 2u);
  EXPECT_EQ(loss_of({57344, 70000, kInfinity}, DType::kFloat32, DType::kFloat8E5M2).overflows, 1u);
}

TEST(ConversionLoss, CountsRoundedWholeNumbers) {
  EXPECT_EQ(loss_of({1001, 2, 0}, DType::kFloat32, DType::kBFloat16).rounded, 1u);
  EXPECT_TRUE(loss_of({1001, 2, 0}, DType::kFloat32, DType::kBFloat16).is_any());
  EXPECT_FALSE(loss_of({1001, 0.5}, DType::kFloat32, DType::kBFloat16).is_any());
  EXPECT_FALSE(loss_of({1000, 2, 0}, DType::kFloat32, DType::kBFloat16).is_any());
}

}  // namespace
}  // namespace cairn
