#include "format/safetensors/index.h"

#include <gtest/gtest.h>

namespace cairn::safetensors {
namespace {

TEST(SafetensorsIndex, IsReadBackAsRendered) {
  Index index;
  index.files = {{"a \"b\"", "model-00001-of-00002.safetensors"}, {"c", "model-00002-of-00002.safetensors"}};
  const Result<std::string> text = render_index(index, 12);
  ASSERT_TRUE(text);
  EXPECT_NE(text->find("\"total_size\": 12"), std::string::npos);
  const Result<Index> again = read_index(*text);
  ASSERT_TRUE(again) << again.error().what();
  EXPECT_EQ(again->files, index.files);
  EXPECT_TRUE(read_index(*render_index({}, 0)));
}

TEST(SafetensorsIndex, MayHoldFurtherMembers) {
  const Result<Index> index = read_index(R"({"metadata": {"x": [1.5, null]}, "weight_map": {"a": "f"}, "more": true})");
  ASSERT_TRUE(index);
  EXPECT_EQ(index->files.size(), 1U);
}

TEST(SafetensorsIndex, DropsEmptyAndDotPathParts) {
  const std::vector<std::pair<std::string_view, std::string_view>> paths{
      {"f", "f"},   {"./f", "f"},   {".//a/./f", "a/f"}, {"/a/f", "/a/f"}, {"//f", "/f"}, {"../f", "../f"},
      {"a/", "a/"}, {"a/./", "a/"}, {".", ""},           {"", ""},         {"/", "/"},    {"..", ".."}};
  for (const auto& [given, expected] : paths) {
    const auto index = read_index(R"({"weight_map": {"k": ")" + std::string(given) + "\"}}");
    ASSERT_TRUE(index);
    EXPECT_EQ(index->files[0].second, expected) << given;
  }
}

TEST(SafetensorsIndex, KeepsTheTextsOfItsMetadata) {
  const std::string_view given =
      R"({"weight_map": {}, "metadata": {"total_size": 7, "x": [1.5, {"\u00e9": null}] , "y":"a"}})";
  const Result<Index> index = read_index(given);
  ASSERT_TRUE(index) << index.error().what();
  const std::vector<std::pair<std::string, std::string>> expected{{"x", R"([1.5, {"\u00e9": null}])"}, {"y", R"("a")"}};
  EXPECT_EQ(index->metadata, expected);
  const std::string rendered = render_index(*index, 9).value();
  EXPECT_NE(rendered.find("\"total_size\": 9,"), std::string::npos);
  EXPECT_EQ(read_index(rendered)->metadata, expected);
  for (const std::string_view other : {"null", "[1]", "3", R"("x")", "{}"}) {
    const Result<Index> read = read_index(R"({"weight_map": {}, "metadata": )" + std::string(other) + "}");
    ASSERT_TRUE(read) << other;
    EXPECT_TRUE(read->metadata.empty());
  }
}

TEST(SafetensorsIndex, IsRefusedIfDamaged) {
  for (const std::string_view text :
       {"", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": {"a": 1}})",
        R"({"weight_map": {"a": "f", "a": "g"}})", R"({"weight_map": {}, "weight_map": {}})",
        R"({"weight_map": {}, "metadata": {"a" 1}})", R"({"weight_map": {"a": "f"}} x)",
        R"({"weight_map": {"a": "f"})"}) {
    EXPECT_FALSE(read_index(text)) << text;
  }
}

}  // namespace
}  // namespace cairn::safetensors
