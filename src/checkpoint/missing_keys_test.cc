#include "checkpoint/missing_keys.h"

#include <gtest/gtest.h>

namespace cairn::checkpointer {
namespace {

Catalog catalog_of(const std::vector<std::string>& fqns) {
  Catalog catalog;
  for (const std::string& fqn : fqns) {
    catalog.keys.push_back({false, static_cast<std::uint32_t>(catalog.values.size())});
    catalog.values.push_back({fqn, {}});
  }
  EXPECT_TRUE(catalog.index());
  return catalog;
}

std::string message(const std::vector<std::string>& in_checkpoint, const std::vector<std::string>& missing) {
  const Error error = missing_keys(catalog_of(in_checkpoint), missing);
  EXPECT_EQ(error.code(), ErrorCode::kMissingKey);
  EXPECT_EQ(error.key(), missing[0]);
  return error.message();
}

TEST(MissingKeys, NamesAllAndTheNearestOfAFew) {
  EXPECT_EQ(message({"model.weight", "model.bias"}, {"model.weihgt", "head.scale"}),
            "Missing key in checkpoint state_dict: model.weihgt (nearest: model.weight), head.scale");
}

TEST(MissingKeys, CountsTheRestOfMany) {
  std::vector<std::string> missing;
  for (int i = 10; i < 30; ++i) missing.push_back("k" + std::to_string(i));
  EXPECT_EQ(message({"other"}, missing),
            "Missing key in checkpoint state_dict: k10, k11, k12, k13, k14, k15, k16, k17 and 12 more");
}

TEST(MissingKeys, NamesAddedAndMissingPrefixes) {
  EXPECT_EQ(
      message({"module.a.w", "module.b.w", "step"}, {"a.w", "b.w"}),
      "Missing key in checkpoint state_dict: a.w, b.w. All 2 are in the checkpoint with the prefix 'module.', which "
      "DistributedDataParallel adds: load into a state dict whose keys have it");
  EXPECT_EQ(
      message({"a.w", "b.w", "step"}, {"_orig_mod.a.w", "_orig_mod.b.w"}),
      "Missing key in checkpoint state_dict: _orig_mod.a.w, _orig_mod.b.w. All 2 are in the checkpoint without the "
      "prefix '_orig_mod.', which torch.compile adds: load into a state dict whose keys lack it");
}

TEST(MissingKeys, APrefixMayStandInsideTheName) {
  const std::string text = message({"model.module.w", "optim.state.module.w.step"}, {"model.w", "optim.state.w.step"});
  EXPECT_NE(text.find("All 2 are in the checkpoint with the prefix 'module.'"), std::string::npos) << text;
}

TEST(MissingKeys, NamesNoPrefixOfOnlySomeKeys) {
  const std::string text = message({"module.a.w"}, {"a.w", "b.w"});
  EXPECT_EQ(text, "Missing key in checkpoint state_dict: a.w (nearest: module.a.w), b.w");
}

// Without bounds the search would compare 10^10 pairs of names.
TEST(MissingKeys, TheSearchIsBounded) {
  std::vector<std::string> in_checkpoint, missing;
  for (int i = 0; i < 100'000; ++i) {
    in_checkpoint.push_back("model.layers." + std::to_string(i) + ".self_attention.query.weight");
    missing.push_back("model.layers." + std::to_string(i) + ".self_attentoin.query.weight");
  }
  const std::string text = message(in_checkpoint, missing);
  EXPECT_NE(text.find("layers.0.self_attentoin.query.weight (nearest: model.layers.0.self_attention.query.weight"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(" and 99992 more"), std::string::npos) << text;
  for (std::string& key : missing) key.insert(0, "module.");
  in_checkpoint.swap(missing);
  for (std::string& key : missing) key.replace(key.find("ion"), 3, "oin");
  EXPECT_NE(message(in_checkpoint, missing).find("All 100000 are in the checkpoint with the prefix 'module.'"),
            std::string::npos);
}

TEST(MissingKeys, AnEmptyCheckpointIsAnAnswerToo) {
  EXPECT_EQ(message({}, {"w"}), "Missing key in checkpoint state_dict: w");
}

}  // namespace
}  // namespace cairn::checkpointer
