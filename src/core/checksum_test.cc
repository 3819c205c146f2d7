#include "core/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string_view>

namespace cairn {
namespace {

std::vector<std::byte> noise(std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Checksum, EqualsTheCrcOfZipFiles) {
  constexpr std::string_view kCheckString = "123456789";  // the published check value of the CRC
  EXPECT_EQ(crc32(std::as_bytes(std::span(kCheckString))), 0xCBF43926u);
  EXPECT_EQ(crc32({}), 0u);
}

TEST(Checksum, CombinesTwoPartsToTheWhole) {
  const std::vector<std::byte> bytes = noise(100'000);
  const std::span<const std::byte> all(bytes);
  const std::uint32_t whole = crc32(all);
  for (const std::size_t cut : {0u, 1u, 63u, 4096u, 65'536u, 99'999u, 100'000u}) {
    EXPECT_EQ(combine_crc32(crc32(all.first(cut)), crc32(all.subspan(cut)), bytes.size() - cut), whole) << cut;
    EXPECT_EQ(crc32(all.subspan(cut), crc32(all.first(cut))), whole) << cut;
  }
}

TEST(Checksum, CombinesBlocksToThePayload) {
  for (const std::size_t size : {0u, 1u, 65'535u, 65'536u, 65'537u, 262'144u, 300'001u}) {
    const std::vector<std::byte> bytes = noise(size);
    std::vector<std::uint32_t> blocks;
    for (std::size_t begin = 0; begin < size; begin += kChecksumBlockBytes) {
      blocks.push_back(
          crc32(std::span(bytes).subspan(begin, std::min<std::size_t>(kChecksumBlockBytes, size - begin))));
    }
    ASSERT_EQ(blocks.size(), checksum_block_count(size));
    EXPECT_EQ(combine_blocks(blocks, size), crc32(bytes)) << size;
  }
}

TEST(Checksum, ComputedDuringACopy) {
  const std::vector<std::byte> bytes = noise(70'001);
  for (const std::size_t shift : {0u, 1u, 16u, 63u, 64u}) {
    std::vector<std::byte> copy(bytes.size() + 64);
    const std::span<std::byte> target = std::span(copy).subspan(shift, bytes.size());
    EXPECT_EQ(copy_with_crc32(target, bytes), crc32(bytes)) << shift;
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), target.begin())) << shift;
  }
}

}  // namespace
}  // namespace cairn
