#include "data_file/item_placement.h"

#include <gtest/gtest.h>

namespace cairn::data_file {
namespace {

constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 62;

torch_file::TensorItem bytes_of(std::uint64_t count) { return {DType::kUInt8, {static_cast<std::int64_t>(count)}}; }

TEST(ItemPlacement, AlignsSmallTensorsTo64Bytes) {
  for (const std::uint64_t previous_end : {0u, 1u, 63u, 64u, 65u, 4095u, 1'000'003u}) {
    const auto placed = place_tensor(bytes_of(kPageAlignedPayloadBytes - 1), previous_end);
    ASSERT_TRUE(placed) << placed.error().what();
    const manifest::ItemRange& range = placed->range;
    EXPECT_EQ(range.payload_offset % kPayloadAlignment, 0u);
    EXPECT_LT(range.payload_offset, previous_end + placed->layout.head_bytes + kPayloadAlignment);
  }
}

TEST(ItemPlacement, AlignsLargeTensorsToPages) {
  for (const std::uint64_t previous_end : {0u, 1u, 4096u, 1'000'003u}) {
    const auto placed = place_tensor(bytes_of(kPageAlignedPayloadBytes), previous_end);
    ASSERT_TRUE(placed) << placed.error().what();
    EXPECT_EQ(placed->range.payload_offset % kPayloadPageBytes, 0u);
    EXPECT_LT(placed->range.payload_offset, previous_end + placed->layout.head_bytes + kPayloadPageBytes);
  }
}

TEST(ItemPlacement, TensorsFollowThePreviousItem) {
  for (const std::uint64_t count : {0u, 1u, 1000u, 300'000u}) {
    for (const std::uint64_t previous_end : {0u, 77u, 123'456u}) {
      const auto placed = place_tensor(bytes_of(count), previous_end);
      ASSERT_TRUE(placed) << placed.error().what();
      const auto& [range, layout] = *placed;
      EXPECT_GE(range.item_offset, previous_end);
      EXPECT_EQ(range.payload_offset, range.item_offset + layout.head_bytes);
      EXPECT_EQ(range.payload_length, count);
      EXPECT_EQ(range.item_length, layout.head_bytes + count + layout.tail_bytes);
    }
  }
}

TEST(ItemPlacement, AlignsBytesToTheNext64) {
  EXPECT_EQ(place_bytes(10, 0).value(), (manifest::ItemRange{0, 10, 0, 10}));
  EXPECT_EQ(place_bytes(10, 1).value(), (manifest::ItemRange{64, 10, 64, 10}));
  EXPECT_EQ(place_bytes(10, 64).value(), (manifest::ItemRange{64, 10, 64, 10}));
  EXPECT_EQ(place_bytes(0, 65).value(), (manifest::ItemRange{128, 0, 128, 0}));
  EXPECT_EQ(place_bytes(kPageAlignedPayloadBytes, 65).value().payload_offset, 128u);
}

TEST(ItemPlacement, RefusesFilesAboveTheLargest) {
  const auto refused = [](const auto& placed) {
    return !placed && placed.error().code() == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(place_bytes(kFileBytesMax, 0));
  EXPECT_TRUE(place_bytes(0, kFileBytesMax));
  EXPECT_TRUE(refused(place_bytes(kFileBytesMax + 1, 0)));
  EXPECT_TRUE(refused(place_bytes(kFileBytesMax, 1)));
  EXPECT_TRUE(refused(place_bytes(1, kFileBytesMax)));
  EXPECT_TRUE(refused(place_bytes(UINT64_MAX, UINT64_MAX)));
  EXPECT_TRUE(refused(place_bytes(0, UINT64_MAX))) << "the alignment must not wrap around to the file's beginning";
  EXPECT_TRUE(refused(place_tensor(bytes_of(kFileBytesMax), 0))) << "the archive's head and tail count";
  EXPECT_TRUE(refused(place_tensor(bytes_of(0), UINT64_MAX)));
  EXPECT_TRUE(refused(place_tensor(bytes_of(1), kFileBytesMax)));
}

}  // namespace
}  // namespace cairn::data_file
