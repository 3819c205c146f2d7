#include "format/manifest/varint.h"

#include <gtest/gtest.h>

namespace cairn::manifest {
namespace {

std::string coded(std::uint64_t value) {
  std::string out;
  append_varint(out, value);
  return out;
}

Result<std::uint64_t> decoded(const std::string& text) {
  return CodedReader(std::as_bytes(std::span(text)), 0).varint();
}

TEST(Varint, GivesBackEveryWidth) {
  for (unsigned bits = 0; bits < 64; ++bits) {
    for (const std::uint64_t value : {std::uint64_t{1} << bits, (std::uint64_t{1} << bits) - 1, UINT64_MAX >> bits}) {
      EXPECT_EQ(decoded(coded(value)).value(), value);
    }
  }
  EXPECT_EQ(coded(127).size(), 1u);
  EXPECT_EQ(coded(128).size(), 2u);
  EXPECT_EQ(coded(UINT64_MAX).size(), 10u);
}

TEST(Varint, RefusesCutAndTooLargeNumbers) {
  EXPECT_FALSE(decoded(""));
  EXPECT_FALSE(decoded("\x80"));
  EXPECT_FALSE(decoded(std::string(9, '\xFF') + '\x02'));
  EXPECT_FALSE(decoded(std::string(10, '\xFF') + '\x01'));
}

TEST(CodedReader, NeverReadsBeyondItsBytes) {
  const std::string text = "abc";
  CodedReader reader(std::as_bytes(std::span(text)), 0);
  EXPECT_FALSE(reader.fixed<std::uint32_t>());
  EXPECT_FALSE(reader.text(4));
  EXPECT_FALSE(reader.text(UINT64_MAX));
  EXPECT_EQ(reader.text(3).value(), "abc");
  EXPECT_FALSE(reader.byte());
}

}  // namespace
}  // namespace cairn::manifest
