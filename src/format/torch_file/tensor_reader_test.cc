#include "format/torch_file/tensor_reader.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "core/checksum.h"
#include "format/testing/golden_archives.h"
#include "format/zip/directory.h"

namespace cairn::torch_file {
namespace {

// The seeds of the fuzz target, which torch 2.13 wrote. Tests run in the root of the repository.
Result<StoredTensor> read(const std::string& item) {
  return read_tensor_item(MemorySource(std::as_bytes(std::span(item))));
}

TEST(TensorReader, ReadsTheFilesOfTorch) {
  const std::string item = golden("stock_float32_2d.pt");
  const StoredTensor record = read(item).value();
  EXPECT_EQ(record.dtype, DType::kFloat32);
  EXPECT_EQ(record.sizes, (Extents{2, 3}));
  EXPECT_EQ(record.strides, (Extents{3, 1}));
  EXPECT_EQ(record.record_offset, 704u);
  EXPECT_EQ(record.record_bytes, 24u);
  EXPECT_EQ(record.record_crc, crc32(std::as_bytes(std::span(item)).subspan(704, 24)));
  EXPECT_TRUE(record.contiguous());
}

TEST(TensorReader, ReadsEveryKindOfStridedTensor) {
  struct Case {
    const char* file;
    DType dtype;
    Extents sizes;
    Extents strides;
    std::uint64_t storage_offset;
    bool contiguous;
  };
  const std::vector<Case> cases{
      {"stock_scalar.pt", DType::kInt64, {}, {}, 0, true},
      {"stock_empty.pt", DType::kFloat32, {0, 3}, {3, 1}, 0, true},
      {"stock_bfloat16_1d.pt", DType::kBFloat16, {5}, {1}, 0, true},
      {"stock_float8_2d.pt", DType::kFloat8E4M3FN, {2, 3}, {3, 1}, 0, true},
      {"stock_uint16.pt", DType::kUInt16, {4}, {1}, 0, true},
      {"stock_transposed.pt", DType::kFloat32, {3, 2}, {1, 3}, 0, false},
      {"stock_view.pt", DType::kFloat32, {2}, {2}, 2, false},
      {"stock_channels_last.pt", DType::kFloat32, {1, 2, 2, 2}, {8, 1, 4, 2}, 0, false},
      {"stock_expanded.pt", DType::kFloat32, {1000}, {0}, 0, false},
  };
  for (const Case& expected : cases) {
    SCOPED_TRACE(expected.file);
    const StoredTensor record = read(golden(expected.file)).value();
    EXPECT_EQ(record.dtype, expected.dtype);
    EXPECT_EQ(record.sizes, expected.sizes);
    EXPECT_EQ(record.strides, expected.strides);
    EXPECT_EQ(record.first_element, expected.storage_offset);
    EXPECT_EQ(record.contiguous(), expected.contiguous);
  }
}

TEST(TensorReader, ReadsTheFlagsOfATensor) {
  EXPECT_TRUE(read(golden("stock_conjugate.pt")).value().conjugate);
  EXPECT_TRUE(read(golden("stock_negative.pt")).value().negative);
  EXPECT_TRUE(read(golden("stock_parameter.pt")).value().requires_grad);
  EXPECT_TRUE(read(golden("stock_requires_grad.pt")).value().requires_grad);
  EXPECT_TRUE(read(golden("zipfile_big_endian.pt")).value().big_endian);
  EXPECT_FALSE(read(golden("stock_float32_2d.pt")).value().requires_grad);
  EXPECT_FALSE(read(golden("stock_without_crcs.pt")).value().record_crc);
}

TEST(TensorReader, RefusesATensorWithAState) {
  for (const char* file : {"stock_float32_2d.pt", "stock_parameter.pt"}) {
    const auto record = read(with_a_state(golden(file)));
    ASSERT_FALSE(record) << file;
    EXPECT_EQ(record.error().code(), ErrorCode::kUnsupported);
    EXPECT_TRUE(record.error().actual()->ends_with(" with a state")) << *record.error().actual();
  }
}

TEST(TensorReader, NamesTheClassOfOtherObjects) {
  const auto refusal = [](const char* file) {
    const auto record = read(golden(file));
    EXPECT_FALSE(record) << file;
    if (record) return std::string();
    EXPECT_EQ(record.error().code(), ErrorCode::kUnsupported) << file;
    return record.error().actual().value_or("");
  };
  EXPECT_EQ(refusal("stock_quantized.pt"), "torch._utils._rebuild_qtensor");
  EXPECT_EQ(refusal("stock_sparse.pt"), "torch._utils._rebuild_sparse_tensor");
  EXPECT_EQ(refusal("stock_values.pt"), "a value that is not a tensor");
  refusal("zipfile_deflated.pt");
  refusal("numpy_archive.npz");
  refusal("legacy.pt");
}

// Changes every byte of an item in three ways. The result must be an error, or a window inside the item. The pickle's
// CRC finds changes in the pickle.
TEST(TensorReader, NeverLeavesTheItem) {
  const std::string good = golden("stock_transposed.pt");
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const char change : {'\x01', '\x40', '\xFF'}) {
      std::string item = good;
      item[i] = static_cast<char>(item[i] ^ change);
      const auto record = read(item);
      if (!record) continue;
      ASSERT_EQ(record->sizes, (Extents{3, 2}));
      ASSERT_LE(record->record_offset + record->record_bytes, item.size());
    }
  }
}

TEST(TensorReader, RefusesAWindowBeyondItsStorage) {
  // The pickle's CRC is set to 0, "not computed": the reader then does not find the change in the pickle.
  std::string item = golden("stock_float32_2d.pt");
  const std::uint64_t directory = zip::read_directory(MemorySource(std::as_bytes(std::span(item)))).value().offset;
  item.replace(directory + 16, 4, 4, '\0');
  const std::size_t sizes = item.find("K\x02K\x03\x86");
  ASSERT_NE(sizes, std::string::npos);
  EXPECT_TRUE(read(item));
  item[sizes + 1] = 3;
  const auto record = read(item);
  ASSERT_FALSE(record);
  EXPECT_EQ(record.error().code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace cairn::torch_file
