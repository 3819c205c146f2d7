#include "format/torch_file/strided_copy.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace cairn::torch_file {
namespace {

std::vector<std::int16_t> copied(const std::vector<std::int16_t>& from, std::vector<std::int64_t> sizes,
                                 std::vector<std::int64_t> strides) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  std::vector<std::int16_t> to(static_cast<std::size_t>(count), -1);
  copy_strided({sizes, strides, 2}, std::as_bytes(std::span(from)), std::as_writable_bytes(std::span(to)));
  return to;
}

TEST(StridedCopy, IsRowMajor) {
  std::vector<std::int16_t> numbers(24);
  std::iota(numbers.begin(), numbers.end(), std::int16_t{0});
  EXPECT_EQ(copied(numbers, {24}, {1}), numbers);
  EXPECT_EQ(copied(numbers, {2, 3, 4}, {12, 4, 1}), numbers);
  EXPECT_EQ(copied(numbers, {}, {}), std::vector<std::int16_t>{0});
  EXPECT_EQ(copied(numbers, {3, 2}, {1, 3}), (std::vector<std::int16_t>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(copied(numbers, {2, 1, 2}, {12, 99, 2}), (std::vector<std::int16_t>{0, 2, 12, 14}));
  EXPECT_EQ(copied(numbers, {2, 2}, {0, 1}), (std::vector<std::int16_t>{0, 1, 0, 1}));
  EXPECT_EQ(copied(numbers, {2, 2, 2}, {4, 12, 1}), (std::vector<std::int16_t>{0, 1, 12, 13, 4, 5, 16, 17}));
}

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

TEST(ByteOrder, IsSwappedPerNumber) {
  std::vector<std::uint16_t> numbers{0x0102, 0x0304, 0x0506, 0x0708};
  swap_bytes(DType::kComplex32, std::as_writable_bytes(std::span(numbers)));
  EXPECT_EQ(numbers, (std::vector<std::uint16_t>{0x0201, 0x0403, 0x0605, 0x0807}));
  swap_bytes(DType::kInt64, std::as_writable_bytes(std::span(numbers)));
  EXPECT_EQ(numbers, (std::vector<std::uint16_t>{0x0708, 0x0506, 0x0304, 0x0102}));
}

}  // namespace
}  // namespace cairn::torch_file
