#include "convert/convert_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace cairn::checkpointer {
namespace {

Catalog catalog_of(const std::vector<std::pair<std::string, DType>>& tensors, const std::vector<std::string>& values) {
  Catalog catalog;
  for (const auto& [fqn, dtype] : tensors) {
    catalog.keys.push_back({true, static_cast<std::uint32_t>(catalog.tensors.size())});
    catalog.tensors.push_back({fqn, dtype, {2, 3}, false, {0, 0, 2, 3}, {{0, 0, 24}}});
  }
  for (const std::string& fqn : values) {
    catalog.keys.push_back({false, static_cast<std::uint32_t>(catalog.values.size())});
    catalog.values.push_back({fqn, {0, 0, 10}});
  }
  EXPECT_TRUE(catalog.index());
  return catalog;
}

std::vector<std::string> names_in(const ConvertPlan& plan) {
  std::vector<std::string> names;
  for (const ConvertKey& key : plan.keys) names.push_back(key.name.fqn);
  return names;
}

using Names = std::vector<std::string>;

TEST(ConvertPlan, TakesAllKeysOrThoseOfPatterns) {
  const Catalog catalog =
      catalog_of({{"model.a", DType::kFloat32}, {"model.b", DType::kInt64}, {"optim.a", DType::kFloat32}}, {"step"});
  EXPECT_EQ(names_in(plan_conversion(catalog, {}).value()), (Names{"model.a", "model.b", "optim.a", "step"}));
  EXPECT_EQ(names_in(plan_conversion(catalog, {.keys = {"model", "st*"}}).value()),
            (Names{"model.a", "model.b", "step"}));
  const Error error = plan_conversion(catalog, {.keys = {"model", "modle.*"}}).error();
  EXPECT_EQ(error.code(), ErrorCode::kMissingKey);
  EXPECT_NE(std::string(error.what()).find("modle.*"), std::string::npos);
}

TEST(ConvertPlan, RefusesPatternsOfEveryKey) {
  const Catalog catalog = catalog_of({{"a", DType::kFloat32}}, {"step"});
  EXPECT_EQ(plan_conversion(catalog, {.exclude = {"*"}}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(plan_conversion(catalog, {.exclude = {"a"}}));
  EXPECT_TRUE(plan_conversion(catalog_of({}, {}), {}));
}

TEST(ConvertPlan, OnlyFloatsChangeTheirDtype) {
  const Catalog catalog = catalog_of({{"f", DType::kFloat32},
                                      {"h", DType::kBFloat16},
                                      {"i", DType::kInt64},
                                      {"b", DType::kBool},
                                      {"c", DType::kComplex64}},
                                     {});
  const ConvertPlan plan = plan_conversion(catalog, {.dtype = DType::kBFloat16}).value();
  ASSERT_EQ(plan.conversions.size(), 1u);
  EXPECT_EQ(plan.conversions[0].fqn, "f");
  EXPECT_EQ(plan.keys[0].dtype, DType::kBFloat16);
  EXPECT_EQ(plan.keys[0].bytes(), 12u);
  EXPECT_EQ(plan.keys[2].dtype, DType::kInt64);
  EXPECT_EQ(plan.keys[4].dtype, DType::kComplex64);
  EXPECT_EQ(plan_conversion(catalog, {.dtype = DType::kInt32}).error().code(), ErrorCode::kInvalidArgument);
}

TEST(ConvertPlan, ACollisionNamesBothKeys) {
  const Catalog catalog = catalog_of({{"a.x", DType::kFloat32}, {"b.x", DType::kFloat32}}, {});
  const Error error = plan_conversion(catalog, {.renames = {{"a", "b"}}}).error();
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("a.x"), std::string::npos);
  EXPECT_NE(std::string(error.what()).find("b.x"), std::string::npos);
}

TEST(ConvertPlan, RefusesARenameWithoutAKey) {
  const Catalog catalog = catalog_of({{"a.x", DType::kFloat32}, {"b.x", DType::kFloat32}}, {});
  EXPECT_TRUE(plan_conversion(catalog, {.keys = {"b"}, .renames = {{"b", "c"}}}));
  EXPECT_EQ(plan_conversion(catalog, {.keys = {"b"}, .renames = {{"a", "c"}}}).error().code(), ErrorCode::kMissingKey);
}

TEST(ConvertPlan, SkipsAPathOfAnotherKey) {
  Catalog catalog = catalog_of({{"a.x", DType::kFloat32}, {"b.x", DType::kFloat32}}, {});
  catalog.paths = {{"a.x", {"a", "x"}}, {"b.x", {"elsewhere"}}};
  const ConvertPlan plan = plan_conversion(catalog, {}).value();
  EXPECT_EQ(plan.keys[0].name.path, (Path{"a", "x"}));
  EXPECT_EQ(plan.keys[1].name.path, (Path{"b.x"}));
}

TEST(ConvertPlan, RefusesOptionsOfAnotherFormat) {
  const Catalog catalog = catalog_of({{"a", DType::kFloat32}}, {});
  const auto code_of = [&](const ConvertOptions& options) { return plan_conversion(catalog, options).error().code(); };
  EXPECT_EQ(code_of({.max_shard_bytes = 1}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.to = CheckpointFormat::kSafetensors, .file_count = 2}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.file_count = 0}), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::checkpointer
