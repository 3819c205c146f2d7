#include "core/key_renames.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

KeyName renamed(const Path& path, const KeyRename& rename) {
  const std::vector<KeyRename> renames{rename};
  return KeyRenames::make(renames).value().apply({fqn_of(path), path}).value();
}

std::string renamed(const std::string& key, const KeyRename& rename) { return renamed(Path{key}, rename).fqn; }

TEST(KeyRenames, APrefixEndsAtADot) {
  EXPECT_EQ(renamed("model.a", {"model", "net"}), "net.a");
  EXPECT_EQ(renamed("model", {"model", "net"}), "net");
  EXPECT_EQ(renamed("models.a", {"model", "net"}), "models.a");
  EXPECT_EQ(renamed("module.a", {"module.", ""}), "a");
  EXPECT_EQ(renamed("module.a", {"module", ""}), "a");
  EXPECT_EQ(renamed("a", {"", "model."}), "model.a");
}

TEST(KeyRenames, EachStarKeepsItsRun) {
  EXPECT_EQ(renamed("layers.12.attn.weight", {"layers.*.attn.*", "h.*.self_attn.*"}), "h.12.self_attn.weight");
  EXPECT_EQ(renamed("a.x.b.x.c", {"a.*.x.*", "*|*"}), "x.b|c");
  EXPECT_EQ(renamed("a.b.x.c.x.d", {"a.*.x.*", "*|*"}), "b|c.x.d");
  EXPECT_EQ(renamed("a.weight", {"*.weight", "*.w"}), "a.w");
  EXPECT_EQ(renamed("a.weights", {"*.weight", "*.w"}), "a.weights");
  EXPECT_EQ(renamed("aXa", {"aX*Xa", "*"}), "aXa");
  EXPECT_EQ(renamed("a*b", {"a\\*b", "c"}), "c");
}

TEST(KeyRenames, ThePathKeepsItsSteps) {
  const Path path{"model", "layers.0.weight"};
  EXPECT_EQ(renamed(path, {"model", "net"}).path, (Path{"net", "layers.0.weight"}));
  EXPECT_EQ(renamed(path, {"model", ""}).path, (Path{"layers.0.weight"}));
  EXPECT_EQ(renamed(path, {"model.layers", "net.blocks"}).path, (Path{"net", "blocks.0.weight"}));
  EXPECT_EQ(renamed(path, {"model", "a.b"}).path, (Path{"a", "b", "layers.0.weight"}));
  EXPECT_EQ(renamed(path, {"*.weight", "*.w"}).path, (Path{"model", "layers.0.w"}));
  EXPECT_EQ(renamed(Path{"layers.0.w"}, {"", "model."}).path, (Path{"model.layers.0.w"}));
}

TEST(KeyRenames, APositionInAListStaysAPosition) {
  const Path path{"groups", std::int64_t{10}, "lr"};
  EXPECT_EQ(renamed(path, {"groups", "g"}).path, (Path{"g", std::int64_t{10}, "lr"}));
  EXPECT_EQ(renamed(path, {"groups.10", "groups.11"}).path, (Path{"groups", "11", "lr"}));
}

TEST(KeyRenames, TheFirstMatchingRenameApplies) {
  const std::vector<KeyRename> renames{{"a.b", "x"}, {"a", "y"}, {"q", "z"}};
  KeyRenames made = KeyRenames::make(renames).value();
  EXPECT_EQ(made.apply({"a.b", {"a.b"}}).value().fqn, "x");
  EXPECT_EQ(made.apply({"a.c", {"a.c"}}).value().fqn, "y.c");
  ASSERT_NE(made.first_unused(), nullptr);
  EXPECT_EQ(made.first_unused()->from, "q");
}

TEST(KeyRenames, WrongRenamesAreRefused) {
  const std::vector<KeyRename> unequal{{"a.*", "b"}};
  EXPECT_EQ(KeyRenames::make(unequal).error().code(), ErrorCode::kInvalidArgument);
  const std::vector<KeyRename> emptying{{"a", ""}};
  EXPECT_EQ(KeyRenames::make(emptying).value().apply({"a", {"a"}}).error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
