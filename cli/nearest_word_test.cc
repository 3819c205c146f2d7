#include "nearest_word.h"

#include <gtest/gtest.h>

namespace cairn::cli {
namespace {

const std::vector<std::string> kCommands{"ls", "inspect", "verify", "status", "completion"};

TEST(NearestWord, TakesTheFewestChangedLetters) {
  EXPECT_EQ(nearest_word("inspct", kCommands), "inspect");
  EXPECT_EQ(nearest_word("vreify", kCommands), "verify");
  EXPECT_EQ(nearest_word("statsu", kCommands), "status");
  EXPECT_EQ(nearest_word("verifyy", kCommands), "verify");
  EXPECT_EQ(nearest_word("sl", kCommands), "ls");
  EXPECT_EQ(nearest_word("--jsn", {"--help", "--json"}), "--json");
}

TEST(NearestWord, CompletesTheBeginningOfAWord) {
  EXPECT_EQ(nearest_word("comp", kCommands), "completion");
  EXPECT_EQ(nearest_word("--follow", {"--help", "--follow-links"}), "--follow-links");
}

TEST(NearestWord, FindsNoneIfTooMuchDiffers) {
  EXPECT_EQ(nearest_word("frobnicate", kCommands), std::nullopt);
  EXPECT_EQ(nearest_word("ab", kCommands), std::nullopt);
  EXPECT_EQ(nearest_word("--", {"--help"}), std::nullopt);
  EXPECT_EQ(nearest_word("", kCommands), std::nullopt);
  EXPECT_EQ(nearest_word(std::string(1'000'000, 'x'), kCommands), std::nullopt);
}

}  // namespace
}  // namespace cairn::cli
