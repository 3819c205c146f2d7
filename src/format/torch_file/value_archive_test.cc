#include "format/torch_file/value_archive.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "format/testing/golden_archives.h"
#include "format/zip/directory.h"

namespace cairn::torch_file {
namespace {

Result<Value> decode(const std::string& archive) {
  return decode_value(MemorySource(std::as_bytes(std::span(archive))));
}

template <typename T>
Array tensor(DType dtype, Extents shape, const std::vector<T>& numbers) {
  Array array;
  array.kind = Array::Kind::kTensor;
  array.dtype = dtype;
  array.shape = std::move(shape);
  array.data.assign(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
  return array;
}

Array floats(Extents shape, const std::vector<float>& numbers) {
  return tensor(DType::kFloat32, std::move(shape), numbers);
}

const Value* find(const Value& dict, const Value& key) {
  for (const auto& [candidate, value] : dict.get_if<Dict>()->items) {
    if (candidate == key) return &value;
  }
  return nullptr;
}

Value example() {
  Array numpy = floats({2}, {1, 2});
  numpy.kind = Array::Kind::kNumpyArray;
  Dict dict;
  dict.items = {{Value("list"), List{{Value(1), Value(2.5), Value(true), Value()}}},
                {Value(7), Tuple{{Value("text"), Bytes{"\x00\xFF"}, floats({2, 1, 1, 2}, {1, 2, 3, 4})}}},
                {Value("scalar"), tensor<std::int64_t>(DType::kInt64, {}, {-5})},
                {Value("empty"), floats({0, 3}, {})},
                {Value("float8"), tensor<std::uint8_t>(DType::kFloat8E5M2, {3}, {1, 2, 3})},
                {Value("numpy"), numpy}};
  return dict;
}

TEST(ValueArchive, IsReadBackAsWritten) {
  const std::string archive = encode_value(example()).value();
  EXPECT_EQ(decode(archive).value(), example());
  EXPECT_EQ(encode_value(example()).value(), archive);
}

TEST(ValueArchive, DescribesTensorsByTheirCalls) {
  const std::string archive = encode_value(List{{Value(floats({2, 1}, {1, 2})), Value(3)}}).value();
  const Value described = describe_value(MemorySource(std::as_bytes(std::span(archive)))).value();
  const auto& items = described.get_if<List>()->items;
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[1], Value(3));
  const Object* call = items[0].object();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->qualified_name(), "torch._utils._rebuild_tensor_v2");
  const auto& arguments = call->arguments.get_if<Tuple>()->items;
  ASSERT_EQ(arguments.size(), 6u);
  ASSERT_NE(arguments[0].object(), nullptr);
  EXPECT_EQ(arguments[0].object()->qualified_name(), "torch.storage._load_storage");
  EXPECT_EQ(arguments[2], Value(Tuple{{Value(2), Value(1)}}));
}

TEST(ValueArchive, StoragesAreAligned) {
  const std::string archive = encode_value(example()).value();
  const MemorySource source(std::as_bytes(std::span(archive)));
  const zip::Directory directory = zip::read_directory(source).value();
  for (const char* name : {"data/0", "data/1", "data/3"}) {
    ASSERT_NE(directory.find(name), nullptr);
    EXPECT_EQ(zip::payload_offset(source, *directory.find(name)).value() % 64, 0u);
  }
}

TEST(ValueArchive, RefusesUnsupportedValues) {
  auto object = std::make_unique<Object>();
  object->module = "some";
  object->name = "Thing";
  const auto code_of = [](const Value& value) {
    const auto archive = encode_value(value);
    return archive ? std::optional<ErrorCode>() : archive.error().code();
  };
  EXPECT_EQ(code_of(List{{Value(std::move(object))}}), ErrorCode::kUnsupported);
  Array torn = floats({2}, {1, 2});
  torn.data.pop_back();
  EXPECT_EQ(code_of(torn), ErrorCode::kInvalidArgument);
  torn.dtype = DType::kQInt8;
  EXPECT_EQ(code_of(torn), ErrorCode::kUnsupported);
}

TEST(ValueArchive, ReadsTheFilesOfTorch) {
  const Value value = decode(golden("stock_values.pt")).value();
  const Value* list = find(value, "a");
  ASSERT_NE(list, nullptr);
  const auto& items = list->get_if<List>()->items;
  ASSERT_EQ(items.size(), 10u);
  EXPECT_EQ(items[0], Value(1));
  EXPECT_EQ(items[1], Value(2.5));
  EXPECT_EQ(items[2], Value());
  EXPECT_EQ(items[3], Value(true));
  EXPECT_EQ(items[4], Value("\xC3\xA4"));
  EXPECT_EQ(items[5], Value(Bytes{"x"}));
  EXPECT_EQ(items[7], Value(Complex{1, 2}));
  EXPECT_EQ(*find(value, "t"), Value(floats({2, 2}, {0, 1, 2, 3})));
  EXPECT_EQ(*find(value, 7), Value(-8));
  EXPECT_EQ(find(value, "n")->get_if<Array>()->shape, (Extents{2, 3}));
  EXPECT_EQ(first_unknown_class(value), "");
}

TEST(ValueArchive, TensorsComeBackRowMajor) {
  EXPECT_EQ(decode(golden("stock_transposed.pt")).value(), Value(floats({3, 2}, {0, 3, 1, 4, 2, 5})));
  EXPECT_EQ(decode(golden("stock_view.pt")).value(), Value(floats({2}, {2, 4})));
  EXPECT_EQ(decode(golden("zipfile_big_endian.pt")).value(), Value(floats({3}, {0, 1, 2})));
  EXPECT_EQ(decode(golden("stock_negative.pt")).value(), Value(floats({2}, {-2, 4})));
  EXPECT_EQ(decode(golden("stock_conjugate.pt")).value(), Value(tensor<float>(DType::kComplex64, {2}, {1, -2, 3, 4})));
  EXPECT_EQ(decode(golden("stock_expanded.pt")).value(), Value(floats({1000}, std::vector<float>(1000, 1))));
  const Value views = decode(golden("stock_views_of_one_storage.pt")).value();
  EXPECT_EQ(*find(views, "row"), Value(floats({4}, {4, 5, 6, 7})));
  EXPECT_EQ(*find(views, "column"), Value(floats({4}, {2, 6, 10, 14})));
  EXPECT_EQ(*find(views, "block"), Value(floats({2, 2}, {5, 6, 9, 10})));
}

TEST(ValueArchive, TensorWithoutArrayIsAnObject) {
  EXPECT_EQ(first_unknown_class(decode(golden("stock_requires_grad.pt")).value()), "torch._utils._rebuild_tensor_v2");
  EXPECT_EQ(first_unknown_class(decode(golden("stock_parameter.pt")).value()), "torch._utils._rebuild_parameter");
  EXPECT_EQ(first_unknown_class(decode(golden("stock_quantized.pt")).value()), "torch._utils._rebuild_qtensor");
  EXPECT_NE(first_unknown_class(decode(golden("stock_object.pt")).value()), "");
}

// A state of torch's may replace the elements of the tensor.
TEST(ValueArchive, ATensorWithAStateIsAnObject) {
  const Value value = decode(with_a_state(golden("stock_float32_2d.pt"))).value();
  const Object* object = value.object();
  ASSERT_NE(object, nullptr);
  EXPECT_EQ(object->qualified_name(), "torch._utils._rebuild_tensor_v2");
  EXPECT_EQ(object->state, Value(Dict()));
}

TEST(ValueArchive, NoticesADamagedRecord) {
  std::string archive = golden("stock_float32_2d.pt");
  archive[704] ^= 1;
  const auto value = decode(archive);
  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(value.error().offset(), 704u);
}

TEST(ValueArchive, BoundsAnExpandedTensor) {
  std::string archive = golden("stock_expanded.pt");
  const std::uint64_t directory = zip::read_directory(MemorySource(std::as_bytes(std::span(archive)))).value().offset;
  archive.replace(directory + 16, 4, 4, '\0');  // the pickle's CRC: not computed
  const std::size_t size = archive.find("M\xE8\x03\x85");
  ASSERT_NE(size, std::string::npos);
  EXPECT_TRUE(decode(archive));
  // The size takes two more bytes. In exchange, removes a memo opcode of two bytes to which nothing refers.
  archive.replace(size, 3, "J\xFF\xFF\xFF\x7F", 5);
  archive.erase(archive.find("q\x06", size), 2);
  const auto value = decode(archive);
  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().code(), ErrorCode::kUnsafe);
}

TEST(Padding, ClassesGrowWithTheLength) {
  EXPECT_EQ(padded_length(1), 256u);
  EXPECT_EQ(padded_length(256), 256u);
  EXPECT_EQ(padded_length(257), 512u);
  EXPECT_EQ(padded_length(4096), 4096u);
  EXPECT_EQ(padded_length(4097), 4608u);
  EXPECT_EQ(padded_length(1 << 20), 1u << 20);
  EXPECT_EQ(padded_length((1 << 20) + 1), (1u << 20) + (1u << 17));
  for (std::uint64_t length = 1; length < 100'000; length += 37) {
    EXPECT_GE(padded_length(length), length);
    EXPECT_LE(padded_length(length), length + std::max<std::uint64_t>(256, length / 8));
    EXPECT_EQ(padded_length(padded_length(length)), padded_length(length));
  }
}

TEST(Padding, KeepsTheArchiveReadable) {
  for (const std::string& archive : {golden("stock_values.pt"), encode_value(example()).value()}) {
    for (const std::uint64_t extra : {0U, 1U, 1000U, 100'000U}) {
      const std::string padded = pad_archive(archive, archive.size() + extra).value();
      EXPECT_EQ(padded.size(), archive.size() + extra);
      EXPECT_EQ(decode(padded).value(), decode(archive).value());
    }
  }
}

TEST(Padding, RefusesUnpaddableArchives) {
  const auto code_of = [](const std::string& archive, std::uint64_t length) {
    const auto padded = pad_archive(archive, length);
    return padded ? std::optional<ErrorCode>() : padded.error().code();
  };
  EXPECT_EQ(code_of("no archive", 100), ErrorCode::kUnsupported);
  EXPECT_EQ(code_of(golden("legacy.pt"), 10'000), ErrorCode::kUnsupported);
  EXPECT_EQ(code_of(golden("stock_scalar.pt"), 10), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::torch_file
