#include "data_file/image_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <random>

#include "core/checksum.h"
#include "data_file/file_image.h"
#include "data_file/safetensors_image.h"
#include "data_file/torch_save_image.h"
#include "format/safetensors/header.h"
#include "format/zip/directory.h"
#include "os/page_buffer.h"
#include "storage/bucket/bucket_storage.h"
#include "storage/open_directory.h"
#include "storage/testing/memory_object_store.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::data_file {
namespace {

// Tensors of several types and sizes; three tensors are larger than a segment of the writer, one of these is strided.
class Sample {
 public:
  Sample() {
    add(DType::kFloat32, {});
    add(DType::kUInt8, {70'001});
    add(DType::kFloat32, {0, 4});
    add(DType::kBFloat16, {1'234'567, 2});
    add(DType::kFloat64, {9, 77'777});
    add(DType::kComplex64, {800'000}, true);
    for (int i = 0; i < 300; ++i) add(DType::kInt16, {1 + i % 50, 3});
    for (const TensorView& view : views_) {
      absent_.push_back(view);
      absent_.back().data = nullptr;
    }
    for (std::size_t i = 0; i < views_.size(); ++i) {
      const auto box = Box::whole(views_[i].sizes).value();
      entries_.push_back({"key." + std::to_string(i), {}, TensorEntry{views_[i], views_[i].sizes, box}});
      absent_entries_.push_back({"key." + std::to_string(i), {}, TensorEntry{absent_[i], views_[i].sizes, box}});
    }
  }

  const std::vector<TensorView>& views(bool absent) const { return absent ? absent_ : views_; }
  std::vector<ItemSource> sources(bool absent) const {
    std::vector<ItemSource> sources;
    for (const Entry& entry : absent ? absent_entries_ : entries_) {
      ItemSource source;
      source.entry = &entry;
      source.tensor = &std::get<TensorEntry>(entry.content);
      sources.push_back(source);
    }
    return sources;
  }
  std::vector<SafetensorsImage::Item> items(bool absent) const {
    std::vector<SafetensorsImage::Item> items;
    for (std::size_t i = 0; i < views_.size(); ++i) items.push_back({entries_[i].fqn, &views(absent)[i]});
    return items;
  }

  // The row-major bytes of a tensor.
  std::vector<std::byte> bytes(std::size_t index) const {
    const TensorView& view = views_[index];
    std::vector<std::byte> bytes(static_cast<std::size_t>(element_count(view.sizes).value()) * item_bytes(view.dtype));
    if (bytes.empty()) return bytes;
    const Region region(view.sizes, row_major_strides(view.sizes), view.strides);
    gather(region, item_bytes(view.dtype), static_cast<const std::byte*>(view.data), 0, bytes);
    return bytes;
  }

 private:
  void add(DType dtype, const Extents& sizes, bool strided = false) {
    const std::size_t step = strided ? 2 : 1;
    auto& memory =
        memories_.emplace_back(static_cast<std::size_t>(element_count(sizes).value()) * item_bytes(dtype) * step + 1);
    for (std::byte& byte : memory) byte = static_cast<std::byte>(random_());
    TensorView view = TensorView::contiguous(static_cast<void*>(memory.data()), dtype, sizes);
    if (strided) view.strides = {2};
    views_.push_back(view);
  }

  std::mt19937 random_{7};
  std::vector<std::vector<std::byte>> memories_;
  std::vector<TensorView> views_;
  std::vector<TensorView> absent_;
  std::vector<Entry> entries_;
  std::vector<Entry> absent_entries_;
};

const Sample& sample() {
  static const Sample sample;
  return sample;
}

// An image of the sample in each format, with memory or absent, and the tensor of each payload.
struct Case {
  std::unique_ptr<Image> image;
  std::vector<std::size_t> tensors;
};

template <typename Kind>
Case case_of(Kind image, const std::function<std::size_t(const Kind&, std::size_t)>& tensor_of) {
  Case made;
  // The last payload of a torch.save file is the pickle.
  for (std::size_t i = 0; i < sample().views(false).size(); ++i) made.tensors.push_back(tensor_of(image, i));
  made.image = std::make_unique<Kind>(std::move(image));
  return made;
}

Case make_case(const std::string& format, bool absent) {
  const auto same = [](const auto&, std::size_t payload) { return payload; };
  if (format == "dcp") {
    return case_of<FileImage>(FileImage::make({{1, 2}, 0, 0, 1}, sample().sources(absent)).value(), same);
  }
  if (format == "torch") {
    return case_of<TorchSaveImage>(TorchSaveImage::make(std::string(5000, 'p'), sample().views(absent)).value(), same);
  }
  return case_of<SafetensorsImage>(
      SafetensorsImage::make({1, 2}, sample().items(absent), {{"made by", "a test"}}).value(),
      [](const SafetensorsImage& image, std::size_t payload) { return image.item_of(payload); });
}

std::function<Result<void>(std::span<const PayloadPart>)> filler(const Case& from) {
  return [&from](std::span<const PayloadPart> parts) -> Result<void> {
    for (const PayloadPart& part : parts) {
      const std::vector<std::byte> bytes = sample().bytes(from.tensors[part.payload]);
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(part.begin), part.out.size(), part.out.begin());
    }
    return {};
  };
}

std::vector<std::byte> read_all(const storage::Storage& storage, const std::string& name) {
  const auto file = storage.open(name, false).value();
  std::vector<std::byte> bytes(file->size());
  EXPECT_TRUE(file->read_at(0, bytes));
  return bytes;
}

class ImageWriter : public testing::TestWithParam<const char*> {
 protected:
  storage::ScratchDirectory scratch_;
  std::unique_ptr<storage::Storage> storage_ = storage::make_directory(scratch_.path()).value();
};

TEST_P(ImageWriter, FilledPayloadsMakeAnEqualFile) {
  const Case in_memory = make_case(GetParam(), false);
  const Case absent = make_case(GetParam(), true);
  std::vector<std::uint32_t> crcs;
  ASSERT_TRUE(write_images(*storage_, {{"memory", in_memory.image.get()}}, {}));
  ImageFile filled{"filled", absent.image.get()};
  filled.fill = filler(absent);
  filled.payload_crcs = &crcs;
  ASSERT_TRUE(write_images(*storage_, {filled}, {}));
  const std::vector<std::byte> file = read_all(*storage_, "memory");
  EXPECT_TRUE(file == read_all(*storage_, "filled"));
  ASSERT_EQ(file.size(), absent.image->file_bytes());
  ASSERT_EQ(crcs.size(), absent.image->payload_count());
  for (std::size_t i = 0; i < absent.tensors.size(); ++i) {
    const std::vector<std::byte> expected = sample().bytes(absent.tensors[i]);
    EXPECT_EQ(crcs[i], crc32(expected));
    const auto payload = std::span(file).subspan(absent.image->payload_begin(i), absent.image->payload_length(i));
    EXPECT_TRUE(std::ranges::equal(payload, expected)) << i;
  }
}

// Of the three ways to give the bytes, to a storage that takes a file in parts.
TEST_P(ImageWriter, ABucketGetsAnEqualFile) {
  using Call = storage::MemoryObjectStore::Call;
  const Case in_memory = make_case(GetParam(), false);
  const Case absent = make_case(GetParam(), true);
  ASSERT_TRUE(write_images(*storage_, {{"memory", in_memory.image.get()}}, {}));
  const std::vector<std::byte> expected = read_all(*storage_, "memory");
  const auto store = std::make_shared<storage::MemoryObjectStore>();
  storage::BucketStorage bucket(store, "s3://bucket", "run");
  ImageFile filled{"filled", absent.image.get()};
  filled.fill = filler(absent);
  os::PageBuffer arena(expected.size());
  std::copy(expected.begin(), expected.end(), arena.data());
  ImageFile staged{"staged", in_memory.image.get()};
  staged.staged = arena.span();
  for (const ImageFile& file : {ImageFile{"memory", in_memory.image.get()}, filled, staged}) {
    SCOPED_TRACE(file.name);
    const std::uint64_t parts = store->call_count(Call::kUploadPart);
    const auto written = write_images(bucket, {file}, {});
    ASSERT_TRUE(written) << written.error().what();
    EXPECT_EQ(store->call_count(Call::kUploadPart) - parts, 2u);
    EXPECT_TRUE(read_all(bucket, file.name) == expected);
  }
  EXPECT_EQ(store->upload_count(), 0u);
}

TEST_P(ImageWriter, FillsEachByteOnceButThoseAhead) {
  const Case absent = make_case(GetParam(), true);
  std::mutex mutex;
  std::vector<std::vector<int>> times(absent.tensors.size());
  for (std::size_t i = 0; i < times.size(); ++i) times[i].resize(absent.image->payload_length(i));
  std::uint64_t ahead = 0;
  ImageFile file{"file", absent.image.get()};
  file.fill = [&](std::span<const PayloadPart> parts) -> Result<void> {
    const std::lock_guard lock(mutex);
    for (const PayloadPart& part : parts) {
      if (part.is_ahead) ahead += part.out.size();
      for (std::uint64_t i = 0; !part.is_ahead && i < part.out.size(); ++i) ++times[part.payload][part.begin + i];
    }
    return filler(absent)(parts);
  };
  ASSERT_TRUE(write_images(*storage_, {file}, {}));
  EXPECT_GT(ahead, 0u);
  for (const std::vector<int>& payload : times) {
    EXPECT_TRUE(std::ranges::all_of(payload, [](int count) { return count == 1; }));
  }
}

TEST_P(ImageWriter, AnExceptionEndsTheWrite) {
  const Case in_memory = make_case(GetParam(), false);
  ImageFile file{"file", in_memory.image.get()};
  file.await_staged = [](std::uint64_t) -> Result<void> { throw std::bad_alloc(); };
  EXPECT_FALSE(write_images(*storage_, {file}, {}));
}

TEST_P(ImageWriter, AnErrorOfFillEndsTheWrite) {
  const Case absent = make_case(GetParam(), true);
  for (const int failing : {1, 3}) {
    std::atomic<int> calls{0};
    ImageFile file{"file." + std::to_string(failing), absent.image.get()};
    file.fill = [&](std::span<const PayloadPart> parts) -> Result<void> {
      if (++calls == failing) return Error(ErrorCode::kCorrupt, "the source is damaged");
      return filler(absent)(parts);
    };
    const auto written = write_images(*storage_, {file}, {});
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code(), ErrorCode::kCorrupt);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ImageWriter, testing::Values("dcp", "torch", "safetensors"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST(SafetensorsImage, HeaderHasTensorsAndChecksums) {
  const storage::ScratchDirectory scratch;
  const auto storage = storage::make_directory(scratch.path()).value();
  const Case in_memory = make_case("safetensors", false);
  ASSERT_TRUE(write_images(*storage, {{"file", in_memory.image.get()}}, {}));
  const std::vector<std::byte> file = read_all(*storage, "file");
  const auto header = safetensors::read_header(MemorySource(file));
  ASSERT_TRUE(header) << header.error().what();
  EXPECT_EQ(header->data_offset % 4096, 0u);
  using Entries = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(header->metadata,
            (Entries{{"format", "pt"}, {"cairn_save_id", to_hex(SaveId{1, 2})}, {"made by", "a test"}}));
  ASSERT_TRUE(header->checksums);
  std::size_t block = 0;
  for (const safetensors::Tensor& tensor : header->tensors) {
    EXPECT_EQ((header->data_offset + tensor.begin) % item_bytes(tensor.dtype), 0u) << tensor.name;
    for (std::uint64_t begin = tensor.begin; begin < tensor.end; begin += kChecksumBlockBytes) {
      const std::uint64_t length = std::min(kChecksumBlockBytes, tensor.end - begin);
      EXPECT_EQ(header->checksums->at(block++), crc32(std::span(file).subspan(header->data_offset + begin, length)));
    }
  }
  EXPECT_EQ(block, header->checksums->size());
}

TEST(SafetensorsImage, ADamagedHeaderIsRefused) {
  const storage::ScratchDirectory scratch;
  const auto storage = storage::make_directory(scratch.path()).value();
  const Case in_memory = make_case("safetensors", false);
  ASSERT_TRUE(write_images(*storage, {{"file", in_memory.image.get()}}, {}));
  std::vector<std::byte> file = read_all(*storage, "file");
  const std::string_view text(reinterpret_cast<const char*>(file.data()), 64 * 1024);
  for (const std::string_view place : {"\"key.5\"", "[9,77777]", "a test", "cairn_checksums", "__metadata__"}) {
    const std::size_t at = text.find(place) + place.size() - 2;
    ASSERT_LT(at, text.size());
    const std::byte before = std::exchange(file[at], static_cast<std::byte>('6'));
    EXPECT_EQ(safetensors::read_header(MemorySource(file)).error().code(), ErrorCode::kCorrupt) << place;
    file[at] = before;
  }
  EXPECT_TRUE(safetensors::read_header(MemorySource(file)));
}

TEST(TorchSaveImage, RecordsHaveChecksums) {
  const storage::ScratchDirectory scratch;
  const auto storage = storage::make_directory(scratch.path()).value();
  const Case in_memory = make_case("torch", false);
  ASSERT_TRUE(write_images(*storage, {{"file", in_memory.image.get()}}, {}));
  const std::vector<std::byte> file = read_all(*storage, "file");
  const MemorySource source(file);
  const zip::Directory directory = zip::read_directory(source).value();
  ASSERT_EQ(directory.entries.size(), in_memory.tensors.size() + 3);
  ASSERT_NE(directory.find("data.pkl"), nullptr);
  EXPECT_EQ(directory.find("data.pkl")->size, 5000u);
  for (const zip::DirectoryEntry& entry : directory.entries) {
    const std::uint64_t offset = zip::payload_offset(source, entry).value();
    EXPECT_EQ(entry.crc, crc32(std::span(file).subspan(offset, entry.size))) << entry.name;
    if (!entry.name.starts_with("data/")) continue;
    const std::size_t storage_number = std::stoul(entry.name.substr(5));
    EXPECT_EQ(offset, in_memory.image->payload_begin(storage_number));
    EXPECT_EQ(offset % (entry.size >= 256 * 1024 ? 4096 : 64), 0u);
  }
}

TEST(SafetensorsImage, ABlockGrowsWithTheFile) {
  constexpr std::uint64_t kTiB = std::uint64_t{1} << 40;
  const auto coverage = [](std::vector<std::uint64_t> lengths) { return safetensors::coverage_of(lengths); };
  EXPECT_EQ(coverage({1, 65'536, 65'537}).blocks, 4u);
  EXPECT_EQ(coverage({kTiB / 8}).block_bytes, 65'536u);
  EXPECT_EQ(coverage({kTiB / 8 + 1}).block_bytes, 131'072u);
  EXPECT_EQ(coverage({kTiB}).blocks, kTiB / (512 * 1024));
  EXPECT_GT(coverage({16 * kTiB}).blocks, safetensors::ChecksumCoverage::kBlocksMax);
}

TEST(TorchSaveImage, NoStoragesMakeAnArchive) {
  const storage::ScratchDirectory scratch;
  const auto storage = storage::make_directory(scratch.path()).value();
  const TorchSaveImage image = TorchSaveImage::make("pickle", {}).value();
  ASSERT_TRUE(write_images(*storage, {{"file", &image}}, {}));
  const std::vector<std::byte> file = read_all(*storage, "file");
  EXPECT_EQ(zip::read_directory(MemorySource(file)).value().entries.size(), 3u);
}

}  // namespace
}  // namespace cairn::data_file
