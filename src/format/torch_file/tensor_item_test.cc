#include "format/torch_file/tensor_item.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/byte_source.h"
#include "core/checksum.h"
#include "format/torch_file/tensor_reader.h"
#include "format/zip/directory.h"

namespace cairn::torch_file {
namespace {

// A whole item with `payload`.
std::vector<std::byte> make_item(const TensorItem& item, std::span<const std::byte> payload) {
  const TensorItemLayout layout = layout_tensor_item(item).value();
  EXPECT_EQ(layout.payload_bytes, payload.size());
  std::vector<std::byte> bytes(layout.total());
  const std::span<std::byte> out(bytes);
  render_head(item, layout, out.first(layout.head_bytes));
  std::copy(payload.begin(), payload.end(), out.begin() + layout.head_bytes);
  render_tail(item, layout, crc32(payload), out.last(layout.tail_bytes));
  return bytes;
}

TEST(TensorItem, IsReadBackInEveryDTypeAndShape) {
  const std::vector<Extents> shapes{{}, {0}, {3, 0, 2}, {5}, {2, 3}, {1, 2, 3, 2}, {70000}, Extents(kDimensionsMax, 1)};
  for (std::size_t code = 0; code < kDTypeCount; ++code) {
    const DType dtype = *dtype_from_code(static_cast<std::uint8_t>(code));
    if (is_quantized(dtype)) continue;
    for (const Extents& shape : shapes) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " " + to_string(shape));
      const auto count = static_cast<std::size_t>(element_count(shape).value());
      const std::vector<std::byte> payload(count * item_bytes(dtype), std::byte{0x5A});
      const TensorItem item{dtype, shape};
      const std::vector<std::byte> bytes = make_item(item, payload);
      const StoredTensor record = read_tensor_item(MemorySource(bytes)).value();
      EXPECT_EQ(record.dtype, dtype);
      EXPECT_EQ(record.sizes, shape);
      EXPECT_EQ(record.strides, row_major_strides(shape));
      EXPECT_TRUE(record.contiguous());
      EXPECT_EQ(record.first_element, 0u);
      EXPECT_EQ(record.record_offset, layout_tensor_item(item).value().head_bytes);
      EXPECT_EQ(record.record_bytes, payload.size());
      EXPECT_EQ(record.record_crc, crc32(payload));
      EXPECT_FALSE(record.big_endian || record.conjugate || record.negative || record.requires_grad);
    }
  }
}

// torch 2.13 loaded these bytes in every mode. A change of the bytes is a change of the format.
TEST(TensorItem, HasTheBytesOfTheFormat) {
  const std::vector<float> numbers{1, 2};
  const std::vector<std::byte> bytes = make_item({DType::kFloat32, {2}}, std::as_bytes(std::span(numbers)));
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  using namespace std::string_literals;
  const std::string pickle =
      "\x80\x02"s
      "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0"s
      "0X\x03\0\0\0"s
      "cpuK\x02tQK\0K\x02\x85K\x01\x85\x89"s
      "ccollections\nOrderedDict\n)RtR."s;
  EXPECT_EQ(text.substr(0, 4), "PK\x03\x04");
  EXPECT_EQ(text.substr(30, 16 + pickle.size()), "archive/data.pkl" + pickle);
  const std::size_t version = 46 + pickle.size();
  EXPECT_EQ(text.substr(version, 4), "PK\x03\x04");
  EXPECT_EQ(text.substr(version + 30, 17), "archive/version3\n");
  const std::size_t payload = version + 47;
  EXPECT_EQ(text.substr(payload, 8), "PK\x03\x04\x0A\0\x08\x08"s);
  EXPECT_EQ(text.substr(payload + 14, 12), std::string(12, '\0'));  // CRC and sizes follow in the descriptor
  EXPECT_EQ(text.substr(payload + 30, 14), "archive/data/0");
  EXPECT_EQ(text.substr(payload + 52, 4), "PK\x07\x08");
  EXPECT_EQ(text.substr(payload + 60, 8), "\x08\0\0\0\x08\0\0\0"s);
  EXPECT_EQ(text.size(), payload + 44 + 8 + 221);
  EXPECT_EQ(crc32(bytes), 0x2A2869EAu);
}

TEST(TensorItem, HeadDoesNotDependOnThePayload) {
  const TensorItem item{DType::kInt8, {4}};
  const TensorItemLayout layout = layout_tensor_item(item).value();
  std::vector<std::byte> first(layout.tail_bytes);
  std::vector<std::byte> second(layout.tail_bytes);
  render_tail(item, layout, 1, first);
  render_tail(item, layout, 2, second);
  EXPECT_NE(first, second);
}

TEST(TensorItem, StaysReadableBeyondFourGiB) {
  const TensorItem item{DType::kUInt8, {5'000'000'000}};
  const TensorItemLayout layout = layout_tensor_item(item).value();
  class Sparse final : public ByteSource {
   public:
    Sparse(const TensorItem& tensor, const TensorItemLayout& places)
        : head_(places.head_bytes), tail_(places.tail_bytes), tail_offset_(places.head_bytes + places.payload_bytes) {
      render_head(tensor, places, head_);
      render_tail(tensor, places, 77, tail_);
    }
    std::uint64_t size() const override { return tail_offset_ + tail_.size(); }
    Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override {
      for (std::size_t i = 0; i < target.size(); ++i, ++offset) {
        target[i] = offset < head_.size()   ? head_[offset]
                    : offset < tail_offset_ ? std::byte{0}
                                            : tail_[offset - tail_offset_];
      }
      return {};
    }

   private:
    std::vector<std::byte> head_;
    std::vector<std::byte> tail_;
    std::uint64_t tail_offset_;
  };
  const StoredTensor record = read_tensor_item(Sparse(item, layout)).value();
  EXPECT_EQ(record.record_bytes, 5'000'000'000u);
  EXPECT_EQ(record.record_offset, layout.head_bytes);
  EXPECT_EQ(record.record_crc, 77u);
}

TEST(TensorItem, RefusesTensorsOfNoNativeForm) {
  const auto code_of = [](const TensorItem& item) {
    const auto layout = layout_tensor_item(item);
    return layout ? std::optional<ErrorCode>() : layout.error().code();
  };
  EXPECT_EQ(code_of({DType::kQInt8, {1}}), ErrorCode::kUnsupported);
  EXPECT_EQ(code_of({DType::kInt8, {-1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({DType::kInt8, {INT64_MAX}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({DType::kFloat64, {INT64_MAX / 4}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({DType::kInt8, Extents(kDimensionsMax + 1, 1)}), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::torch_file
