#include "data_file/image_composer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "core/byte_source.h"
#include "core/checksum.h"
#include "data_file/file_image.h"
#include "format/torch_file/tensor_reader.h"

namespace cairn::data_file {
namespace {

// A state of tensors of many sizes, some of them strided. Owns the tensors' memory.
class SampleState {
 public:
  SampleState() {
    std::mt19937 random(3);
    add({}, false, random);
    add({0, 4}, false, random);
    for (int i = 0; i < 20; ++i) add({1 + static_cast<std::int64_t>(random() % 40), 7}, i % 3 == 0, random);
    add({300, 500}, false, random);  // more than a page-aligned payload, several segments long
    add({300, 500}, true, random);
    for (int i = 0; i < 5; ++i) add({3}, false, random);
  }

  std::vector<ItemSource> sources() const {
    std::vector<ItemSource> result;
    for (const Entry& entry : state_.entries()) {
      ItemSource source;
      source.entry = &entry;
      source.tensor = std::get_if<TensorEntry>(&entry.content);
      if (source.tensor == nullptr) {
        source.bytes = std::get<SerializedValue>(entry.content).payload;
        source.kind = manifest::TrailerItem::Kind::kValue;
      }
      result.push_back(source);
    }
    return result;
  }

  void add_bytes(std::string bytes) {
    const auto number = std::to_string(state_.entries().size());
    EXPECT_TRUE(state_.add_serialized(Path{"bytes", number}, SerializedValue{std::move(bytes)}));
  }

  // The elements in row-major order: the expected payload in the file.
  static std::vector<float> elements(const TensorEntry& tensor) {
    const auto count = static_cast<std::size_t>(tensor.box.element_count());
    std::vector<float> result(count);
    const Region region(tensor.local.sizes, row_major_strides(tensor.local.sizes), tensor.local.strides);
    gather(region, 4, static_cast<const std::byte*>(tensor.local.data), 0, std::as_writable_bytes(std::span(result)));
    return result;
  }

 private:
  void add(Extents sizes, bool transposed, std::mt19937& random) {
    auto& memory = memories_.emplace_back(static_cast<std::size_t>(element_count(sizes).value()));
    for (float& value : memory) value = static_cast<float>(random());
    TensorView view = TensorView::contiguous(memory.data(), DType::kFloat32, sizes);
    if (transposed) view = {memory.data(), DType::kFloat32, {sizes[1], sizes[0]}, {1, sizes[1]}};
    EXPECT_TRUE(state_.add_tensor(Path{"t", std::to_string(memories_.size())}, view));
  }

  StateDict state_;
  std::vector<std::vector<float>> memories_;
};

std::vector<std::byte> compose_with(const Image& image, std::uint64_t segment_bytes, std::size_t thread_count) {
  ImageComposer composer(image, segment_bytes);
  std::vector<std::byte> file(image.file_bytes());
  std::atomic<std::uint64_t> next{0};
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < thread_count; ++i) {
      threads.emplace_back([&] {
        for (std::uint64_t segment = next++; segment < composer.segment_count(); segment = next++) {
          composer.compose(segment,
                           std::span(file).subspan(composer.segment_begin(segment), composer.segment_length(segment)));
        }
      });
    }
  }
  return file;
}

TEST(ImageComposer, EqualForAnyBlocksAndThreads) {
  SampleState state;
  state.add_bytes("first value");
  state.add_bytes(std::string(200'000, 'v'));
  const FileImage image = FileImage::make({{1, 2}, 3, 0, 1}, state.sources()).value();
  const std::vector<std::byte> expected = compose_with(image, std::uint64_t{1} << 30, 1);
  for (const std::uint64_t segment : {4096u, 12'288u, 65'536u, 1u << 20}) {
    EXPECT_EQ(compose_with(image, segment, 1), expected) << segment;
    EXPECT_EQ(compose_with(image, segment, 4), expected) << segment;
  }
}

TEST(ImageComposer, ChecksumsCoverEveryByte) {
  const SampleState state;
  const FileImage image = FileImage::make({{1, 2}, 3, 0, 1}, state.sources()).value();
  const std::vector<std::byte> file = compose_with(image, 8192, 3);
  const MemorySource source(file);
  const auto trailer = manifest::read_trailer(source).value();
  ASSERT_TRUE(trailer);
  EXPECT_EQ(trailer->save_id(), (SaveId{1, 2}));
  std::uint64_t covered = 0;
  const std::span<const std::byte> bytes(file);
  for (std::size_t i = 0; i <= trailer->item_count(); ++i) {
    const std::uint64_t begin = trailer->frame_begin(i);
    EXPECT_EQ(begin, covered);
    EXPECT_EQ(crc32(bytes.subspan(begin, trailer->frame_end(i) - begin)), trailer->frame_checksum(i)) << "frame " << i;
    covered = trailer->frame_end(i);
    if (i == trailer->item_count()) break;
    const manifest::ItemRange& range = trailer->range(i);
    const auto payload = bytes.subspan(range.payload_offset, range.payload_length);
    EXPECT_EQ(combine_blocks(trailer->block_checksums(i), range.payload_length), crc32(payload)) << "item " << i;
    covered += range.payload_length;
  }
  EXPECT_EQ(covered, trailer->trailer_offset());
}

TEST(ImageComposer, ItemsAreArchivesOfTensors) {
  const SampleState state;
  const std::vector<ItemSource> sources = state.sources();
  const FileImage image = FileImage::make({{1, 2}, 0, 0, 1}, sources).value();
  const std::vector<std::byte> file = compose_with(image, 16'384, 2);
  const MemorySource source(file);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const manifest::ItemRange& range = image.range(i);
    const auto item = SourceWindow::make(source, range.item_offset, range.item_length).value();
    const auto record = torch_file::read_tensor_item(item);
    ASSERT_TRUE(record) << record.error().what();
    EXPECT_EQ(range.item_offset + record->record_offset, range.payload_offset);
    const std::span<const std::byte> payload = std::span(file).subspan(range.payload_offset, range.payload_length);
    EXPECT_EQ(record->record_crc.value_or(0), crc32(payload));
    const std::vector<float> elements = SampleState::elements(*sources[i].tensor);
    EXPECT_TRUE(std::ranges::equal(payload, std::as_bytes(std::span(elements))));
    const bool large = range.payload_length >= kPageAlignedPayloadBytes;
    EXPECT_EQ(range.payload_offset % (large ? kPayloadPageBytes : kPayloadAlignment), 0u);
  }
}

TEST(ImageComposer, NoItemsMakeATrailer) {
  const FileImage image = FileImage::make({{1, 2}, 0, 0, 1}, {}).value();
  const std::vector<std::byte> file = compose_with(image, 4096, 2);
  const auto trailer = manifest::read_trailer(MemorySource(file)).value();
  ASSERT_TRUE(trailer);
  EXPECT_EQ(trailer->item_count(), 0u);
}

TEST(ImageComposer, CompletesAFileInStagedMemory) {
  SampleState state;
  state.add_bytes(std::string(5000, 'v'));
  const std::vector<ItemSource> sources = state.sources();
  const ImageIdentity identity{{1, 2}, 3, 0, 1};
  const FileImage direct = FileImage::make(identity, sources).value();
  const std::vector<std::byte> expected = compose_with(direct, 64 * 1024, 2);

  const manifest::TrailerIndex index = FileImage::lay_out(identity, sources).value().index;
  std::vector<std::byte> staged(direct.file_bytes(), std::byte{0xAA});
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const manifest::ItemRange& range = index.items[i].range;
    direct.read_payload(i, 0, std::span(staged).subspan(range.payload_offset, range.payload_length));
  }
  const FileImage image = FileImage::of_staged(index, staged).value();
  ASSERT_EQ(image.file_bytes(), direct.file_bytes());
  ImageComposer composer(image, 64 * 1024);
  for (std::uint64_t segment = 0; segment < composer.segment_count(); ++segment) {
    composer.compose(segment,
                     std::span(staged).subspan(composer.segment_begin(segment), composer.segment_length(segment)));
  }
  EXPECT_EQ(staged, expected);
}

TEST(ImageComposer, RefusesAnIndexOfAnotherLayout) {
  SampleState state;
  manifest::TrailerIndex index = FileImage::lay_out({{1, 2}, 3, 0, 1}, state.sources()).value().index;
  std::vector<std::byte> staged(8 << 20);
  ASSERT_TRUE(FileImage::of_staged(index, staged));
  EXPECT_EQ(FileImage::of_staged(index, std::span(staged).first(4096)).error().code(), ErrorCode::kInvalidArgument);
  manifest::ItemRange& last = index.items.back().range;
  last.item_offset += 64;
  last.payload_offset += 64;
  EXPECT_EQ(FileImage::of_staged(index, staged).error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::data_file
