#include "format/json/json_reader.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "format/json/json_string.h"

namespace cairn::json {
namespace {

std::optional<std::string> string_in(std::string_view text) {
  JsonReader reader(text, 0);
  Result<std::string> value = reader.read_string();
  return value && reader.end() ? std::optional(*std::move(value)) : std::nullopt;
}

std::optional<std::uint64_t> number_in(std::string_view text) {
  JsonReader reader(text, 0);
  const Result<std::uint64_t> value = reader.read_unsigned();
  return value && reader.end() ? std::optional(*value) : std::nullopt;
}

bool is_json(std::string_view text) {
  JsonReader reader(text, 0);
  return reader.skip_value() && reader.end();
}

TEST(JsonReader, ReadsMembersAndElements) {
  JsonReader reader(R"( { "a" : [ 1 , 22 ] , "b" : { } , "c" : "x" } )", 0);
  ASSERT_TRUE(reader.begin_object());
  EXPECT_EQ(**reader.next_name(), "a");
  ASSERT_TRUE(reader.begin_array());
  EXPECT_TRUE(*reader.next_element());
  EXPECT_EQ(*reader.read_unsigned(), 1U);
  EXPECT_TRUE(*reader.next_element());
  EXPECT_EQ(*reader.read_unsigned(), 22U);
  EXPECT_FALSE(*reader.next_element());
  EXPECT_EQ(**reader.next_name(), "b");
  ASSERT_TRUE(reader.begin_object());
  EXPECT_FALSE(reader.next_name()->has_value());
  EXPECT_EQ(**reader.next_name(), "c");
  EXPECT_EQ(*reader.read_string(), "x");
  EXPECT_FALSE(reader.next_name()->has_value());
  EXPECT_TRUE(reader.end());
}

TEST(JsonReader, DecodesEscapedCharacters) {
  EXPECT_EQ(string_in(R"("\"\\\/\b\f\n\r\t")"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(string_in(R"("\u0041\u00e9\u20AC")"), "A\u00e9\u20ac");
  EXPECT_EQ(string_in(R"("\ud83d\ude00")"), "\U0001F600");
  EXPECT_EQ(string_in("\"\u00e9\u20ac\U0001F600\U0010FFFF\""), "\u00e9\u20ac\U0001F600\U0010FFFF");
  EXPECT_EQ(string_in(R"("\u0000")"), std::string(1, '\0'));
}

TEST(JsonReader, RefusesDamagedStrings) {
  for (const std::string_view text : {"\"",
                                      "\"a",
                                      "\"\\\"",
                                      "\"\\x\"",
                                      R"("\u12")",
                                      R"("\u12g4")",
                                      R"("\ud83d")",
                                      R"("\ud83dx")",
                                      R"("\ud83d\u0041")",
                                      R"("\ude00")",
                                      "\"\n\"",
                                      "\"\x1f\"",
                                      "\"\x80\"",
                                      "\"\xc0\x80\"",
                                      "\"\xed\xa0\x80\"",
                                      "\"\xf4\x90\x80\x80\"",
                                      "\"\xf8\x88\x80\x80\x80\"",
                                      "\"\xe2\x82\"",
                                      "\"\xff\"",
                                      "'a'",
                                      "a"}) {
    EXPECT_FALSE(string_in(text)) << text;
  }
}

TEST(JsonReader, ReadsUnsignedNumbersExactly) {
  EXPECT_EQ(number_in("0"), 0U);
  EXPECT_EQ(number_in(" 18446744073709551615 "), UINT64_MAX);
  for (const std::string_view text :
       {"18446744073709551616", "99999999999999999999", "-1", "01", "00", "1.0", "1e3", "1E3", "", "x", "1 2", "+1"}) {
    EXPECT_FALSE(number_in(text)) << text;
  }
}

TEST(JsonReader, SkipsExactlyValidJson) {
  for (const std::string_view text : {"0", "-0", "-1.5e+10", "1E-2", "true", "false", "null", "[]", "{}",
                                      R"([[], {"a": [1, 2, {"b": null}]}, "x"])"}) {
    EXPECT_TRUE(is_json(text)) << text;
  }
  for (const std::string_view text : {"",     "-",     "1.",      ".5",        "01",
                                      "-01",  "1e",    "nul",     "nullx",     "[1,]",
                                      "[,1]", "[1 2]", "{\"a\"}", "{\"a\":}",  "{\"a\":1,}",
                                      "{,}",  "{a:1}", "[1}",     "{\"a\":1]", "[",
                                      "{",    "[]]",   "// x\n1", "NaN",       "\xef\xbb\xbf[]"}) {
    EXPECT_FALSE(is_json(text)) << text;
  }
}

TEST(JsonReader, ReadsNonFiniteNumbersIfAllowed) {
  const auto is_read = [](std::string_view text) {
    JsonReader reader(text, 0);
    reader.allow_non_finite();
    return reader.skip_value() && reader.end();
  };
  EXPECT_TRUE(is_read(R"([NaN, Infinity, {"a": -Infinity}, -1])"));
  for (const std::string_view text : {"nan", "-NaN", "NaNs", "Inf", "[NaN Infinity]"}) EXPECT_FALSE(is_read(text));
}

TEST(JsonReader, BoundsTheNestingDepth) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(is_json(nested(kJsonDepthMax)));
  EXPECT_FALSE(is_json(nested(kJsonDepthMax + 1)));
  EXPECT_FALSE(is_json(std::string(1 << 20, '[')));
}

TEST(JsonReader, NamesTheOffsetInTheFile) {
  JsonReader reader("[1, x]", 100);
  const Result<void> skipped = reader.skip_value();
  ASSERT_FALSE(skipped);
  EXPECT_EQ(skipped.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(skipped.error().offset(), 104U);
  EXPECT_EQ(skipped.error().actual(), "'x]'");
}

TEST(JsonString, IsReadBackAsWritten) {
  std::string text;
  for (int c = 0; c < 0x80; ++c) text.push_back(static_cast<char>(c));
  text += "\u00e9\u20ac\U0001F600";
  std::string out;
  ASSERT_TRUE(append_json_string(out, text));
  EXPECT_EQ(string_in(out), text);
}

TEST(JsonString, RefusesOtherBytesThanUtf8) {
  for (const std::string_view text : {"\x80", "a\xff", "\xed\xa0\x80", "\xc3"}) {
    std::string out;
    EXPECT_FALSE(append_json_string(out, text));
  }
}

}  // namespace
}  // namespace cairn::json
