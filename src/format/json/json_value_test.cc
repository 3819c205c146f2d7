#include "format/json/json_value.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace cairn::json {
namespace {

std::string text_of(std::string_view json) {
  const Result<Value> value = read_json_value(json);
  return value ? to_string(*value) : value.error().what();
}

TEST(JsonValue, IsThatOfPythonsJson) {
  EXPECT_EQ(text_of(R"({"a": [1, -2, 0.5, 1e3], "b": {"c": null}, "d": true, "e": "\u00e4"})"),
            "{'a': [1, -2, 0.5, 1000.0], 'b': {'c': None}, 'd': True, 'e': 'ä'}");
  EXPECT_EQ(text_of("[]"), "[]");
  EXPECT_EQ(text_of(" 7 "), "7");
}

TEST(JsonValue, HasIntegersOfAnySize) {
  EXPECT_EQ(text_of("9223372036854775807"), "9223372036854775807");
  const Result<Value> large = read_json_value("-9223372036854775809");
  ASSERT_TRUE(large);
  ASSERT_NE(large->get_if<BigInt>(), nullptr);
  EXPECT_EQ(large->get_if<BigInt>()->data, std::string("\xff\xff\xff\xff\xff\xff\xff\x7f\xff"));
  EXPECT_FALSE(read_json_value(std::string(5000, '9')));
}

TEST(JsonValue, HasNumbersBeyondDoubles) {
  EXPECT_TRUE(std::isnan(*read_json_value("NaN")->get_if<double>()));
  EXPECT_EQ(text_of("-Infinity"), "-inf");
  EXPECT_EQ(text_of("1e999"), "inf");
  EXPECT_EQ(text_of("1e-999"), "0.0");
}

TEST(JsonValue, KeepsTheLastOfTwoNames) { EXPECT_EQ(text_of(R"({"a": 1, "b": 2, "a": 3})"), "{'a': 3, 'b': 2}"); }

TEST(JsonValue, DamageAndDepthAreRefused) {
  for (const std::string& text : {std::string("{\"a\": 1"), std::string("[1,]"), std::string("nul"), std::string(""),
                                  std::string("1 2"), std::string(100, '[') + std::string(100, ']')}) {
    const Result<Value> value = read_json_value(text);
    ASSERT_FALSE(value) << text;
    EXPECT_EQ(value.error().code(), ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace cairn::json
