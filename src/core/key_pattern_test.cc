#include <cairn/catalog.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cairn {
namespace {

TEST(KeyPattern, PlainTextMatchesAKeyOrAFolder) {
  EXPECT_TRUE(matches_key("model.layers.0", "model.layers.0"));
  EXPECT_TRUE(matches_key("model.layers.0", "model.layers.0.weight"));
  EXPECT_FALSE(matches_key("model.layers.0", "model.layers.01.weight"));
  EXPECT_FALSE(matches_key("layers", "model.layers.0"));
  EXPECT_TRUE(matches_key("", ""));
  EXPECT_FALSE(matches_key("", "model"));
}

TEST(KeyPattern, StarsAreAnyRunDotsIncluded) {
  EXPECT_TRUE(matches_key("*", "a.b.c"));
  EXPECT_TRUE(matches_key("*", ""));
  EXPECT_TRUE(matches_key("model.*.bias", "model.layers.0.bias"));
  EXPECT_TRUE(matches_key("*.bias", "model.layers.0.bias"));
  EXPECT_TRUE(matches_key("*layers*", "model.layers.0.bias"));
  EXPECT_TRUE(matches_key("*.0", "model.0.0.weight"));
  EXPECT_TRUE(matches_key("*ab", "aab"));
  EXPECT_FALSE(matches_key("*.bias", "bias"));
  EXPECT_FALSE(matches_key("model.*.bias", "model.layers.0.weight"));
}

TEST(KeyPattern, QuestionMarksAndSetsOfLetters) {
  EXPECT_TRUE(matches_key("gr\xc3\xb6?e",
                          "gr\xc3\xb6\xc3\x9f"
                          "e"));
  EXPECT_TRUE(matches_key("?", "\xff"));
  EXPECT_FALSE(matches_key("?", ""));
  EXPECT_TRUE(matches_key("layers.[0-35]", "layers.5.w"));
  EXPECT_FALSE(matches_key("layers.[0-35]", "layers.4.w"));
  EXPECT_TRUE(matches_key("layers.[!0-3]", "layers.4.w"));
  EXPECT_TRUE(matches_key("[]a]", "]"));
  EXPECT_TRUE(matches_key("a[", "a["));
  EXPECT_TRUE(matches_key("a[0", "a[0"));
  EXPECT_TRUE(matches_key("\\*", "*"));
  EXPECT_FALSE(matches_key("\\*", "a"));
  EXPECT_TRUE(matches_key("\\", "\\"));
}

TEST(KeyPattern, ManyStarsStayQuick) {
  std::string pattern;
  for (int i = 0; i < 1000; ++i) pattern += "*a";
  EXPECT_FALSE(matches_key(pattern + "b", std::string(10'000, 'a')));
}

TEST(KeyPattern, SelectsKeysOfAnyPattern) {
  EXPECT_TRUE(selects_key({}, "a"));
  const std::vector<std::string> patterns{"b", "a.*"};
  EXPECT_TRUE(selects_key(patterns, "a.c"));
  EXPECT_FALSE(selects_key(patterns, "a"));
}

}  // namespace
}  // namespace cairn
