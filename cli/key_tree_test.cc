#include "key_tree.h"

#include <gtest/gtest.h>

namespace cairn::cli {
namespace {

std::string drawn(const std::vector<std::string>& names) {
  KeyTree tree;
  for (std::size_t i = 0; i < names.size(); ++i) tree.add(names[i], i);
  std::string text;
  for (const TreeLine& line : tree.lines()) {
    text += std::string(line.depth, ' ') + line.name + (line.key ? "=" + std::to_string(*line.key) : "") + "\n";
  }
  return text;
}

TEST(KeyTree, KeysOfOneFolderAreAdjacent) { EXPECT_EQ(drawn({"a.x", "step", "a.y"}), "a\n x=0\n y=2\nstep=1\n"); }

TEST(KeyTree, JoinsAFolderWithItsOnlyEntry) {
  EXPECT_EQ(drawn({"a.b.c.x", "a.b.c.y", "d.e.f"}), "a.b.c\n x=0\n y=1\nd.e.f=2\n");
}

TEST(KeyTree, AKeyCanBeAFolderToo) { EXPECT_EQ(drawn({"a", "a.b"}), "a=0\n b=1\n"); }

TEST(KeyTree, EmptyPartsAreKept) { EXPECT_EQ(drawn({"", ".", "a."}), "=0\n =1\na.=2\n"); }

TEST(KeyTree, BoundsTheDepthOfALongKey) {
  const std::string deep(100'000, '.');
  KeyTree tree;
  tree.add(deep, 0);
  tree.add(deep + "x", 1);
  for (const TreeLine& line : tree.lines()) EXPECT_LT(line.depth, 40U);
}

}  // namespace
}  // namespace cairn::cli
