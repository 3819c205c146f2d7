#include "checkpoint/element_reader.h"

#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plan/testing/random_tiling.h"

namespace cairn::checkpointer {
namespace {

namespace fs = std::filesystem;

class ElementReading : public testing::Test {
 protected:
  ElementReading() {
    fs::create_directories("build");
    std::string pattern = (fs::current_path() / "build" / "elements-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  ~ElementReading() override { fs::remove_all(directory_); }

  // Saves the tensor "w" of the shape, in the chunks given; element i has the value i.
  void save_in(const Extents& shape, const std::vector<Box>& chunks) {
    std::vector<std::int64_t> elements(static_cast<std::size_t>(element_count(shape).value()));
    std::iota(elements.begin(), elements.end(), 0);
    const Extents strides = row_major_strides(shape);
    StateDict state;
    for (const Box& chunk : chunks) {
      std::int64_t first = 0;
      for (std::size_t i = 0; i < shape.size(); ++i) first += chunk.offsets()[i] * strides[i];
      const TensorView view{elements.data() + first, DType::kInt64, chunk.sizes(), strides};
      ASSERT_TRUE(state.add_chunk("w", view, shape, chunk.offsets()));
    }
    const auto saved = save(directory_, state, {.file_per_item = true});
    ASSERT_TRUE(saved) << saved.error().what();
  }

  fs::path directory_;
  os::StopFlag stop_;
};

TEST_F(ElementReading, AnyRangeOfAnyTiling) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    const Extents shape = plan::random_shape(1 + random() % 3, 9, random);
    std::vector<Box> chunks;
    plan::shatter(Box::whole(shape).value(), 3, random, chunks);
    save_in(shape, chunks);
    const Checkpoint checkpoint = open(directory_).value();
    data_file::RecordChecks checks(stop_);
    const auto reader = ElementReader::open(checkpoint.impl(), checkpoint.catalog().tensors[0]);
    ASSERT_TRUE(reader) << reader.error().what();
    const std::int64_t count = element_count(shape).value();
    for (int range = 0; range < 20; ++range) {
      const std::int64_t begin = static_cast<std::int64_t>(random()) % count;
      const std::int64_t end = begin + 1 + static_cast<std::int64_t>(random()) % (count - begin);
      std::vector<std::int64_t> elements(static_cast<std::size_t>(end - begin), -1);
      std::vector<std::int64_t> expected(elements.size());
      std::iota(expected.begin(), expected.end(), begin);
      ASSERT_TRUE(reader->read({begin, end}, reinterpret_cast<std::byte*>(elements.data()), checks));
      ASSERT_EQ(elements, expected);
    }
  }
}

TEST_F(ElementReading, ScalarsAndEmptyTensors) {
  double scalar = 2.5;
  StateDict state;
  ASSERT_TRUE(state.add_tensor("scalar", TensorView::contiguous(&scalar, DType::kFloat64, {})));
  ASSERT_TRUE(state.add_tensor("empty", TensorView::contiguous(&scalar, DType::kFloat64, {0, 3})));
  ASSERT_TRUE(save(directory_, state));
  const Checkpoint checkpoint = open(directory_).value();
  data_file::RecordChecks checks(stop_);
  double read = 0;
  const auto of_scalar = ElementReader::open(checkpoint.impl(), *checkpoint.catalog().find_tensor("scalar"));
  ASSERT_TRUE(of_scalar->read({0, 1}, reinterpret_cast<std::byte*>(&read), checks));
  EXPECT_EQ(read, 2.5);
  const auto of_empty = ElementReader::open(checkpoint.impl(), *checkpoint.catalog().find_tensor("empty"));
  ASSERT_TRUE(of_empty) << of_empty.error().what();
  EXPECT_TRUE(of_empty->read({0, 0}, nullptr, checks));
}

TEST_F(ElementReading, ReadsOfSeveralChunksEndAtRows) {
  save_in({100, 10}, {plan::box({0, 0}, {100, 4}), plan::box({0, 4}, {100, 6})});
  const Checkpoint checkpoint = open(directory_).value();
  const auto reader = ElementReader::open(checkpoint.impl(), checkpoint.catalog().tensors[0]);
  EXPECT_EQ(reader->elements_per_read(250), 30);
  EXPECT_EQ(reader->elements_per_read(79), 9);  // a row has 80 bytes
  EXPECT_EQ(reader->elements_per_read(1), 1);
}

TEST_F(ElementReading, AFlippedByteIsNamed) {
  save_in({100, 10}, {plan::box({0, 0}, {100, 4}), plan::box({0, 4}, {100, 6})});
  const Checkpoint checkpoint = open(directory_).value();
  data_file::RecordChecks checks(stop_);
  const auto reader = ElementReader::open(checkpoint.impl(), checkpoint.catalog().tensors[0]);
  ASSERT_TRUE(reader);
  const CatalogTensor& tensor = reader->tensor();
  const std::size_t chunk = tensor.chunk(0).offsets()[1] == 4 ? 0 : 1;
  const ItemLocation& place = tensor.locations[chunk];
  const std::string& name = checkpoint.catalog().files[place.file];
  {
    std::fstream file(directory_ / name, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(place.offset + place.length / 2));
    file.put('\x7f');
  }
  std::vector<std::int64_t> elements(1000);
  const auto read = reader->read({990, 1000}, reinterpret_cast<std::byte*>(elements.data()), checks);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(read.error().key(), "w");
  EXPECT_EQ(read.error().file(), name);
  EXPECT_TRUE(read.error().offset());
}

}  // namespace
}  // namespace cairn::checkpointer
