#include "json_writer.h"

#include <gtest/gtest.h>

#include <utility>

namespace cairn::cli {
namespace {

std::string quoted(std::string_view text) {
  JsonWriter json;
  json.text(text);
  std::string result = std::move(json).take();
  result.pop_back();
  return result;
}

TEST(JsonWriter, NestsAndSeparates) {
  JsonWriter json;
  json.begin_object();
  json.key("empty").begin_array();
  json.end_array();
  json.key("keys").begin_array();
  for (const std::uint64_t number : {1U, 2U}) {
    json.begin_object();
    json.key("number").number(number);
    json.key("none").null();
    json.key("list").begin_array();
    json.boolean(true);
    json.number(std::int64_t{-1});
    json.end_array();
    json.end_object();
  }
  json.end_array();
  json.end_object();
  EXPECT_EQ(std::move(json).take(), R"({
  "empty": [],
  "keys": [
    {"number": 1, "none": null, "list": [true, -1]},
    {"number": 2, "none": null, "list": [true, -1]}
  ]
}
)");
}

TEST(JsonWriter, EscapesQuotesAndLineFeeds) {
  EXPECT_EQ(quoted("a\"b\\c\nd\x01"), R"("a\"b\\c\u000ad\u0001")");
  EXPECT_EQ(quoted("größe 🪨"), "\"größe 🪨\"");
}

TEST(JsonWriter, EscapesInvisibleCharacters) {
  EXPECT_EQ(quoted("\u0080\u009b31m"), R"("\u0080\u009b31m")");
  EXPECT_EQ(quoted("a\u202eb\u2066c\u200f"), R"("a\u202eb\u2066c\u200f")");
  EXPECT_EQ(quoted("w\u200b"), R"("w\u200b")");
  EXPECT_EQ(quoted("w\U000e0041"), R"("w\udb40\udc41")");
}

TEST(JsonWriter, AnyBytesMakeValidText) {
  EXPECT_EQ(quoted("a\xff"), R"("a\udcff")");
  EXPECT_EQ(quoted("\xed\xa0\x80"), R"("\ud800")");
}

}  // namespace
}  // namespace cairn::cli
