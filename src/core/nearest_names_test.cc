#include "core/nearest_names.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

std::vector<std::string> nearest(std::string_view wanted, const std::vector<std::string>& names,
                                 std::size_t count_max = 3) {
  NearestNames found(wanted, count_max);
  for (const std::string& name : names) found.consider(name);
  return std::move(found).take();
}

using Names = std::vector<std::string>;

TEST(NearestNames, AnEditOfOneCharacterIsNear) {
  EXPECT_EQ(nearest("model.weihgt", {"model.weight", "model.bias", "optim.weight"}), Names{"model.weight"});
  EXPECT_EQ(nearest("model.weght", {"model.weight"}), Names{"model.weight"});
  EXPECT_EQ(nearest("model.weigght", {"model.weight"}), Names{"model.weight"});
  EXPECT_EQ(nearest("model.weizht", {"model.weight"}), Names{"model.weight"});
}

TEST(NearestNames, TheNearestComeFirstUpToALimit) {
  const Names names{"layer.12.bias", "layer.11.bios", "layer.11.bia", "layer.11.bias"};
  EXPECT_EQ(nearest("layer.11.biaz", names), (Names{"layer.11.bia", "layer.11.bias", "layer.12.bias"}));
  EXPECT_EQ(nearest("layer.11.biaz", names, 1), Names{"layer.11.bia"});
  EXPECT_EQ(nearest("layer.11.biaz", names, 0), Names());
}

TEST(NearestNames, WholeComponentsAreOneStep) {
  EXPECT_EQ(nearest("model.layer.weight", {"model.module.layer.weight"}), Names{"model.module.layer.weight"});
  EXPECT_EQ(nearest("_orig_mod.layer.weight", {"layer.weight"}), Names{"layer.weight"});
  EXPECT_EQ(nearest("w", {"a.very.long.prefix.w"}), Names{"a.very.long.prefix.w"});
}

TEST(NearestNames, AnotherNameIsNotNear) {
  EXPECT_EQ(nearest("model.weight", {"optimizer.lr", "", "w", "epoch"}), Names());
  EXPECT_EQ(nearest("", {"w", "weight"}), Names{"w"});
}

TEST(NearestNames, TheWorkIsBounded) {
  const std::string wanted(std::size_t{1} << 20, 'a');
  NearestNames found(wanted, 3);
  std::string name = wanted;
  for (int i = 0; i < 100'000; ++i) {  // 10^12 cells without the bound
    name[static_cast<std::size_t>(i)] = 'b';
    found.consider(name);
  }
  EXPECT_EQ(std::move(found).take().size(), 3u);
}

TEST(AddedComponents, BeginAndEndAtDots) {
  const auto text = [](std::string_view shorter, std::string_view longer) {
    const auto added = added_components(shorter, longer);
    return added ? std::to_string(added->offset) + " " + std::string(added->text) : "";
  };
  EXPECT_EQ(text("model.w", "module.model.w"), "0 module.");
  EXPECT_EQ(text("a.model.w", "a.module.model.w"), "2 module.");
  EXPECT_EQ(text("a.w", "a.b.c.w"), "2 b.c.");
  EXPECT_EQ(text("w", "xw"), "");
  EXPECT_EQ(text("w", "w.x"), "");
  EXPECT_EQ(text("w", "w"), "");
  EXPECT_EQ(text("", "module."), "0 module.");
  EXPECT_EQ(text("model.w", "model.v"), "");
}

}  // namespace
}  // namespace cairn
