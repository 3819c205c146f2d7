#include "core/stored_elements.h"

#include <gtest/gtest.h>

#include <vector>

namespace cairn {
namespace {

TEST(Negation, FlipsSignsOfEveryKind) {
  std::vector<std::int32_t> integers{0, 1, -5, 256, INT32_MIN};
  negate(DType::kInt32, std::as_writable_bytes(std::span(integers)));
  EXPECT_EQ(integers, (std::vector<std::int32_t>{0, -1, 5, -256, INT32_MIN}));
  std::vector<float> floats{1.5f, -2.0f};
  negate(DType::kFloat32, std::as_writable_bytes(std::span(floats)));
  EXPECT_EQ(floats, (std::vector<float>{-1.5f, 2.0f}));
  std::vector<float> complex{1, 2, 3, -4};
  negate_imaginary(DType::kComplex64, std::as_writable_bytes(std::span(complex)));
  EXPECT_EQ(complex, (std::vector<float>{1, -2, 3, 4}));
}

TEST(ByteOrder, SwapsWithinEachNumber) {
  std::vector<std::uint16_t> numbers{0x0102, 0x0304, 0x0506, 0x0708};
  swap_bytes(DType::kComplex32, std::as_writable_bytes(std::span(numbers)));
  EXPECT_EQ(numbers, (std::vector<std::uint16_t>{0x0201, 0x0403, 0x0605, 0x0807}));
  swap_bytes(DType::kInt64, std::as_writable_bytes(std::span(numbers)));
  EXPECT_EQ(numbers, (std::vector<std::uint16_t>{0x0708, 0x0506, 0x0304, 0x0102}));
}

}  // namespace
}  // namespace cairn
