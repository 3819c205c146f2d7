#include "device/tensor_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "core/region.h"
#include "device/registration.h"

namespace cairn::device {
namespace {

constexpr std::uint64_t kCopyPiece = Registration::kPieceBytes;

// Carries the copies out on host memory, which stands for the device's.
void carry_out(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    for (std::uint64_t row = 0; row < copy.rows; ++row) {
      std::memcpy(copy.host + row * copy.host_pitch,
                  reinterpret_cast<const std::byte*>(copy.device + row * copy.device_pitch), copy.width);
    }
  }
}

std::vector<float> numbers(std::size_t count) {
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = static_cast<float>(i);
  return result;
}

std::vector<std::byte> gathered(const TensorView& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(element_count(tensor.sizes).value()) *
                               item_bytes(tensor.dtype));
  gather(Region(tensor.sizes, row_major_strides(tensor.sizes), tensor.strides), item_bytes(tensor.dtype),
         static_cast<const std::byte*>(tensor.data), 0, bytes);
  return bytes;
}

TEST(TensorCopies, AContiguousTensorTakesOneCopy) {
  auto source = numbers(24);
  std::vector<std::byte> host(16);
  std::vector<Copy> copies;
  append_copies(TensorView::contiguous(source.data(), DType::kFloat32, {4, 6}), 8, host, nullptr, copies);
  ASSERT_EQ(copies.size(), 1U);
  carry_out(copies);
  EXPECT_EQ(std::memcmp(host.data(), source.data() + 2, 16), 0);
}

TEST(TensorCopies, AnEmptyTensorTakesNoCopy) {
  std::vector<Copy> copies;
  append_copies(TensorView::contiguous(static_cast<void*>(nullptr), DType::kFloat32, {0, 6}), 0, {}, nullptr, copies);
  EXPECT_TRUE(copies.empty());
}

TEST(TensorCopies, ColumnsTakeOneCopyOfManyRows) {
  auto source = numbers(1000 * 64);
  const TensorView columns{source.data(), DType::kFloat32, {1000, 16}, {64, 1}};
  std::vector<std::byte> host(1000 * 16 * 4);
  std::vector<Copy> copies;
  append_copies(columns, 0, host, nullptr, copies);
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies[0].rows, 1000U);
  EXPECT_EQ(copies[0].width, 64U);
  carry_out(copies);
  EXPECT_EQ(host, gathered(columns));
}

TEST(TensorCopies, CopiesEndAtTheBordersOfPieces) {
  std::vector<std::byte> source(3 * kCopyPiece);
  std::vector<std::byte> memory(4 * kCopyPiece);
  const TensorView tensor =
      TensorView::contiguous(source.data(), DType::kUInt8, {static_cast<std::int64_t>(3 * kCopyPiece)});
  std::vector<Copy> copies;
  append_copies(tensor, 0, std::span(memory).subspan(100, 3 * kCopyPiece), memory.data(), copies);
  ASSERT_EQ(copies.size(), 4U);
  EXPECT_EQ(copies[0].width, kCopyPiece - 100);
  EXPECT_EQ(copies[1].width, kCopyPiece);
  EXPECT_EQ(copies[3].width, 100U);
}

TEST(TensorCopies, RowsThatCrossAPieceAreSplit) {
  auto source = numbers(200 * 32);
  std::vector<std::byte> memory(2 * kCopyPiece);
  const TensorView columns{source.data(), DType::kFloat32, {200, 5}, {32, 1}};
  const std::span host = std::span(memory).subspan(kCopyPiece - 1003, 200 * 5 * 4);
  std::vector<Copy> copies;
  append_copies(columns, 0, host, memory.data(), copies);
  for (const Copy& copy : copies) {
    const auto begin = static_cast<std::uint64_t>(copy.host - memory.data());
    EXPECT_EQ(begin / kCopyPiece, (begin + copy.host_pitch * (copy.rows - 1) + copy.width - 1) / kCopyPiece);
  }
  carry_out(copies);
  EXPECT_TRUE(std::ranges::equal(host, gathered(columns)));
}

TEST(TensorCopies, AnyStridesCopyLikeAGather) {
  std::mt19937_64 random(20261123);
  for (int trial = 0; trial < 300; ++trial) {
    auto source = numbers(4096);
    Extents sizes{static_cast<std::int64_t>(1 + random() % 5), static_cast<std::int64_t>(1 + random() % 5),
                  static_cast<std::int64_t>(1 + random() % 7)};
    Extents strides{static_cast<std::int64_t>(random() % 90), static_cast<std::int64_t>(random() % 40),
                    static_cast<std::int64_t>(random() % 3)};
    const TensorView tensor{source.data(), DType::kFloat32, sizes, strides};
    const std::vector<std::byte> expected = gathered(tensor);
    const std::uint64_t elements = expected.size() / 4;
    const std::uint64_t begin = random() % elements * 4;
    const std::uint64_t length = (1 + random() % (elements - begin / 4)) * 4;
    std::vector<std::byte> host(length);
    std::vector<Copy> copies;
    append_copies(tensor, begin, host, nullptr, copies);
    carry_out(copies);
    EXPECT_TRUE(std::ranges::equal(host, std::span(expected).subspan(begin, length))) << "trial " << trial;
  }
}

}  // namespace
}  // namespace cairn::device
