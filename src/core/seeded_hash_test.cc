#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/little_endian.h"
#include "core/seeded_hash.h"

namespace cairn {
namespace {

TEST(SeededHash, DiffersForUnequalTexts) {
  const SeededHash hash;
  std::set<std::size_t> seen;
  std::string text;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(hash(text), hash(std::string(text)));
    EXPECT_TRUE(seen.insert(hash(text)).second) << text.size() << " bytes";
    text += '\0';
  }
}

// For any first block, a second block exists that brings MurmurHash64A, the hash of libstdc++, to one fixed state.
TEST(SeededHash, SeparatesCollisionsOfMurmur) {
  constexpr std::uint64_t kMultiplier = 0xC6A4A7935BD1E995;
  std::uint64_t inverse = kMultiplier;  // of an odd number, by Newton's method
  for (int i = 0; i < 6; ++i) inverse *= 2 - kMultiplier * inverse;
  const auto mixed = [](std::uint64_t block) {
    block *= kMultiplier;
    return (block ^ block >> 47) * kMultiplier;
  };
  const auto unmixed = [&](std::uint64_t block) {
    block *= inverse;
    return (block ^ block >> 47) * inverse;
  };
  const std::uint64_t state = 0xC70F6907 ^ 16 * kMultiplier;
  const auto text_of = [&](std::uint64_t first) {
    const auto after = [&](std::uint64_t block) { return (state ^ mixed(block)) * kMultiplier; };
    const std::uint64_t second = unmixed(after(first) ^ after(0) ^ mixed(0));
    std::string text(16, '\0');
    store_little_endian(store_little_endian(reinterpret_cast<std::byte*>(text.data()), first), second);
    return text;
  };
  std::set<std::size_t> seeded;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const std::string text = text_of(i);
#ifdef __GLIBCXX__
    EXPECT_EQ(std::hash<std::string>()(text), std::hash<std::string>()(text_of(0)));
#endif
    EXPECT_TRUE(seeded.insert(SeededHash()(text)).second);
  }
}

}  // namespace
}  // namespace cairn
