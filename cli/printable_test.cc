#include "printable.h"

#include <gtest/gtest.h>

namespace cairn::cli {
namespace {

TEST(Printable, PlainTextIsUnchanged) {
  EXPECT_EQ(printable("model.layers/0 weight"), "model.layers/0 weight");
  EXPECT_EQ(printable("größe.权重.🪨"), "größe.权重.🪨");
}

TEST(Printable, ControlCharactersAreEscaped) {
  EXPECT_EQ(printable("a\nb"), "a\\nb");
  EXPECT_EQ(printable("\x1b[31mred"), "\\x1b[31mred");
  EXPECT_EQ(printable(std::string_view("\0\x7f", 2)), "\\x00\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\x9b");  // CSI as one character
  EXPECT_EQ(printable("abc\u202etxt"), "abc\\u202etxt");
}

TEST(Printable, InvisibleCharactersAreEscaped) {
  EXPECT_EQ(printable("w\u200b"), "w\\u200b");  // zero width space
  EXPECT_EQ(printable("\ufeffw"), "\\ufeffw");
  EXPECT_EQ(printable("a\u00adb"), "a\\xadb");          // soft hyphen
  EXPECT_EQ(printable("a\u00a0b"), "a\\xa0b");          // no-break space
  EXPECT_EQ(printable("a\u3164b"), "a\\u3164b");        // a letter without a glyph
  EXPECT_EQ(printable("w\U000e0041"), "w\\U000e0041");  // a tag
  EXPECT_EQ(printable("a\u2028b"), "a\\u2028b");
}

TEST(Printable, ABackslashIsEscaped) { EXPECT_EQ(printable("a\\nb"), "a\\\\nb"); }

TEST(Printable, BytesOutsideUtf8AreEscaped) {
  EXPECT_EQ(printable("a\xff\xfe"), "a\\xff\\xfe");
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");        // cut off
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");        // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\ud800");       // half of a surrogate pair, as Python writes it
  EXPECT_EQ(printable("\xf4\x90\x80\x80").size(), 16U);  // beyond Unicode
}

TEST(ByteText, HasOneDecimalAndFitsItsUnit) {
  EXPECT_EQ(byte_text(0), "0 B");
  EXPECT_EQ(byte_text(1023), "1023 B");
  EXPECT_EQ(byte_text(1024), "1.0 KiB");
  EXPECT_EQ(byte_text(1024 * 1024 - 1), "1.0 MiB");
  EXPECT_EQ(byte_text(~std::uint64_t{0}), "16.0 EiB");
}

TEST(Counted, TheSingularForOneKey) {
  EXPECT_EQ(counted(1, "key"), "1 key");
  EXPECT_EQ(counted(0, "key"), "0 keys");
}

}  // namespace
}  // namespace cairn::cli
