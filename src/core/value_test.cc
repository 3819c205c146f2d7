// Values as text.
#include <cairn/state_dict.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>

namespace cairn {
namespace {

using namespace std::string_literals;

Value call(std::string module, std::string name, Value arguments, Value items = {}, Value state = {}) {
  auto object = std::make_unique<Object>();
  object->module = std::move(module);
  object->name = std::move(name);
  object->arguments = std::move(arguments);
  object->items = std::move(items);
  object->state = std::move(state);
  return object;
}

TEST(ValueText, ShowsTheConstructorCall) {
  EXPECT_EQ(to_string(call("torch", "float32", None{})), "<torch.float32>");
  EXPECT_EQ(to_string(call("datetime", "timedelta", Tuple{{1, 2, 3}})), "<datetime.timedelta(1, 2, 3)>");
  EXPECT_EQ(to_string(call("collections", "deque", Tuple{{List{}, 3}}, List{{1, 2}})),
            "<collections.deque([], 3), [1, 2]>");
  EXPECT_EQ(to_string(call("_io", "BytesIO", Tuple{}, {}, Tuple{{Bytes{"abc"}, 0, None{}}})),
            "<_io.BytesIO(), (<3 bytes>, 0, None)>");
}

TEST(ValueText, ShowsAComplexNumberWithOneSign) {
  EXPECT_EQ(to_string(Complex{1.5, 2}), "(1.5+2.0j)");
  EXPECT_EQ(to_string(Complex{-1, -2}), "(-1.0-2.0j)");
  EXPECT_EQ(to_string(Complex{1, -0.0}), "(1.0-0.0j)");
  EXPECT_EQ(to_string(Complex{0, std::numeric_limits<double>::quiet_NaN()}), "(0.0+nanj)");
}

TEST(ValueText, ShowsDatesAndTimes) {
  const Value moment = call("datetime", "datetime", Tuple{{Bytes{"\x07\xe8\x82\x1d\x02\x1e\x00\x00\x03\x15"s}}});
  EXPECT_EQ(to_string(moment), "<datetime.datetime 2024-02-29 02:30:00.000789>");
  EXPECT_EQ(to_string(call("datetime", "date", Tuple{{Bytes{"\x07\xe8\x02\x1d"s}}})), "<datetime.date 2024-02-29>");
  const Value time = call("datetime", "time", Tuple{{Bytes{"\x17\x3b\x3b\x0f\x42\x3f"s}}});
  EXPECT_EQ(to_string(time), "<datetime.time 23:59:59.999999>");
  EXPECT_EQ(to_string(call("datetime", "date", Tuple{{Bytes{"abc"}}})), "<datetime.date of 3 bytes>");
}

TEST(ValueText, ShowsLargeNumbersInHexadecimal) {
  EXPECT_EQ(to_string(BigInt{"\x01\x00\x00\x00\x00\x00\x00\x00\x2a"s}), "0x2a0000000000000001");
  EXPECT_EQ(to_string(BigInt{"\x01\x00\x00\x00\x00\x00\x00\x00\xff\x00"s}), "0xff0000000000000001");
  EXPECT_EQ(to_string(BigInt{std::string(9, '\xff')}), "<integer of 9 bytes>");
  EXPECT_EQ(to_string(BigInt{std::string(21, 'a')}), "<integer of 21 bytes>");
}

}  // namespace
}  // namespace cairn
