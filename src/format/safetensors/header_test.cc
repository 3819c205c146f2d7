#include "format/safetensors/header.h"

#include <gtest/gtest.h>

#include <span>
#include <string>

#include "core/little_endian.h"

namespace cairn::safetensors {
namespace {

std::string file_of(std::string_view header, std::size_t data_bytes) {
  std::string file(kLengthBytes, '\0');
  store_little_endian(reinterpret_cast<std::byte*>(file.data()), std::uint64_t{header.size()});
  file += header;
  return file + std::string(data_bytes, 'x');
}

Result<Header> read(const std::string& file) { return read_header(MemorySource(std::as_bytes(std::span(file)))); }

std::string entry(std::string_view name, std::string_view type, std::string_view shape, std::string_view places) {
  return "\"" + std::string(name) + "\":{\"dtype\":\"" + std::string(type) + "\",\"shape\":" + std::string(shape) +
         ",\"data_offsets\":" + std::string(places) + "}";
}

TEST(SafetensorsHeader, IsReadInTheOrderOfTheBytes) {
  const std::string text = "{" + entry("b", "BF16", "[2,3]", "[8,20]") + ",\"__metadata__\":{\"format\":\"pt\"}," +
                           entry("a", "I64", "[]", "[0,8]") + "," + entry("empty", "F32", "[0,7]", "[20,20]") + "}  ";
  const Result<Header> header = read(file_of(text, 20));
  ASSERT_TRUE(header) << header.error().what();
  ASSERT_EQ(header->tensors.size(), 3U);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].dtype, DType::kInt64);
  EXPECT_TRUE(header->tensors[0].shape.empty());
  EXPECT_EQ(header->tensors[1].name, "b");
  EXPECT_EQ(header->tensors[1].shape, (Extents{2, 3}));
  EXPECT_EQ(header->tensors[1].begin, 8U);
  EXPECT_EQ(header->tensors[2].end, 20U);
  EXPECT_EQ(header->data_offset, kLengthBytes + text.size());
  ASSERT_EQ(header->metadata.size(), 1U);
  EXPECT_EQ(header->metadata[0].second, "pt");
}

TEST(SafetensorsHeader, CountsPairsOfF4) {
  const Result<Header> header = read(file_of("{" + entry("a", "F4", "[2,8]", "[0,8]") + "}", 8));
  ASSERT_TRUE(header) << header.error().what();
  EXPECT_EQ(header->tensors[0].dtype, DType::kFloat4E2M1FNx2);
  EXPECT_EQ(header->tensors[0].shape, (Extents{2, 4}));
  EXPECT_FALSE(read(file_of("{" + entry("a", "F4", "[2,7]", "[0,7]") + "}", 7)));
  EXPECT_FALSE(read(file_of("{" + entry("a", "F4", "[]", "[0,1]") + "}", 1)));
}

TEST(SafetensorsHeader, RefusesOffsetsThatDoNotFit) {
  const auto reads = [](const std::string& entries, std::size_t bytes) {
    return static_cast<bool>(read(file_of("{" + entries + "}", bytes)));
  };
  EXPECT_TRUE(reads(entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[4,8]"), 8));
  EXPECT_FALSE(reads(entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[3,7]"), 7)) << "shared bytes";
  EXPECT_FALSE(reads(entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[5,9]"), 9)) << "a gap";
  EXPECT_FALSE(reads(entry("a", "U8", "[4]", "[1,5]"), 5)) << "a gap at the begin";
  EXPECT_FALSE(reads(entry("a", "U8", "[4]", "[0,4]"), 5)) << "bytes behind";
  EXPECT_FALSE(reads(entry("a", "U8", "[4]", "[0,4]"), 3)) << "cut off";
  EXPECT_FALSE(reads(entry("a", "U8", "[4]", "[4,0]"), 4)) << "backwards";
  EXPECT_FALSE(reads(entry("a", "U16", "[4]", "[0,4]"), 4)) << "the shape needs more";
  EXPECT_FALSE(reads(entry("a", "U8", "[4611686018427387904,4]", "[0,0]"), 0)) << "an overflow";
  EXPECT_FALSE(reads(entry("a", "I64", "[4611686018427387904]", "[0,0]"), 0)) << "an overflow of bytes";
  EXPECT_FALSE(reads(entry("a", "U8", "[9223372036854775808]", "[0,0]"), 0)) << "a size above 2^63 - 1";
  EXPECT_TRUE(reads(entry("a", "U8", "[0,9223372036854775807]", "[0,0]"), 0)) << "no element";
}

TEST(SafetensorsHeader, RefusesOtherMembers) {
  const std::string good = entry("a", "U8", "[1]", "[0,1]");
  for (const std::string& text : {
           "{" + good + "," + entry("a", "U8", "[0]", "[1,1]") + "}",
           std::string("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}"),
           std::string("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}"),
           std::string("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"),
           std::string("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}"),
           std::string("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}"),
           "{" + entry("a", "", "[1]", "[0,1]") + "}",
           "{" + entry("a", "F6_E2M3", "[3]", "[0,1]") + "}",
           "{" + entry("a", "U9", "[1]", "[1,0]") + "}",
           "{" + entry("a", "U8", "[-1]", "[0,1]") + "}",
           "{" + good + ",\"__metadata__\":{\"k\":1}}",
           "{" + good + ",\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}",
           "{" + good + ",\"__metadata__\":[]}",
           "{" + good + "}x",
           "{" + good,
           " {" + good + "}",
           std::string(),
       }) {
    EXPECT_FALSE(read(file_of(text, 1))) << text;
  }
}

TEST(SafetensorsHeader, PassesOverTypesWithoutADType) {
  for (const std::string type : {"F6_E2M3", "F6_E3M2"}) {
    const std::string text = "{" + entry("a", type, "[4]", "[0,3]") + "," + entry("b", "U16", "[1]", "[3,5]") + "}";
    const Result<Header> header = read(file_of(text, 5));
    ASSERT_TRUE(header) << header.error().what();
    EXPECT_EQ(header->tensors[0].unread_type, type);
    EXPECT_EQ(header->tensors[0].shape, (Extents{4}));
    EXPECT_EQ(header->tensors[1].unread_type, "");
    EXPECT_EQ(header->tensors[1].dtype, DType::kUInt16);
    EXPECT_FALSE(render_header(*header));
  }
  const Result<Header> unknown = read(file_of("{" + entry("a", "U9", "[4]", "[0,3]") + "}", 3));
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code(), ErrorCode::kCorrupt);
}

TEST(SafetensorsHeader, BoundsItsLength) {
  EXPECT_FALSE(read(""));
  EXPECT_FALSE(read("1234567"));
  std::string file = file_of("{}", 0);
  EXPECT_TRUE(read(file));
  file[0] = 3;
  EXPECT_FALSE(read(file)) << "longer than the file";
  EXPECT_FALSE(read(file_of("{}" + std::string(kHeaderBytesMax, ' '), 0))) << "above the format's limit";
}

TEST(SafetensorsHeader, IsReadBackAsRendered) {
  Header header;
  header.metadata = {{"format", "pt"}, {"note", "a \"quoted\"\n line"}};
  std::uint64_t place = 0;
  const auto add = [&](std::string name, DType dtype, Extents shape, std::uint64_t bytes) {
    header.tensors.push_back({std::move(name), dtype, std::move(shape), place, place + bytes});
    place += bytes;
  };
  add("\u00e9.weight", DType::kBFloat16, {2, 3}, 12);
  add("scalar", DType::kFloat64, {}, 8);
  add("packed", DType::kFloat4E2M1FNx2, {3, 2}, 6);
  add("empty", DType::kBool, {4, 0}, 0);
  Result<std::string> text = render_header(header);
  ASSERT_TRUE(text) << text.error().what();
  EXPECT_EQ(text->size() % 8, 0U);
  const Result<Header> again = read(*text + std::string(place, 'x'));
  ASSERT_TRUE(again) << again.error().what();
  EXPECT_EQ(again->metadata, header.metadata);
  EXPECT_EQ(again->data_offset, text->size());
  ASSERT_EQ(again->tensors.size(), header.tensors.size());
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    EXPECT_EQ(again->tensors[i].name, header.tensors[i].name);
    EXPECT_EQ(again->tensors[i].dtype, header.tensors[i].dtype);
    EXPECT_EQ(again->tensors[i].shape, header.tensors[i].shape);
    EXPECT_EQ(again->tensors[i].begin, header.tensors[i].begin);
    EXPECT_EQ(again->tensors[i].end, header.tensors[i].end);
  }
}

TEST(SafetensorsHeader, RendersNoTensorOutsideFormat) {
  const auto refused = [](std::string name, DType dtype, Extents shape, std::uint64_t bytes) {
    Header header;
    header.tensors.push_back({"first", DType::kUInt8, {1}, 0, 1});
    header.tensors.push_back({std::move(name), dtype, std::move(shape), 1, 1 + bytes});
    const Result<std::string> text = render_header(header);
    return text ? std::optional<ErrorCode>() : text.error().code();
  };
  EXPECT_EQ(refused("second", DType::kComplex128, {1}, 16), ErrorCode::kUnsupported);
  EXPECT_EQ(refused("second", DType::kFloat4E2M1FNx2, {}, 1), ErrorCode::kUnsupported);
  EXPECT_EQ(refused("first", DType::kUInt8, {1}, 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused("__metadata__", DType::kUInt8, {1}, 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused("\xed\xa0\x80", DType::kUInt8, {1}, 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused("second", DType::kUInt8, {1}, 1), std::nullopt);
}

}  // namespace
}  // namespace cairn::safetensors
