// The compact catalog's writer and reader against each other, and against a scan of all chunks.
#include <gtest/gtest.h>
#include <sanitizers.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "core/checksum.h"
#include "format/compact_catalog/coding.h"
#include "format/compact_catalog/footer.h"
#include "format/compact_catalog/reader.h"
#include "format/compact_catalog/writer.h"
#include "format/dcp/metadata_decoder.h"
#include "format/dcp/metadata_template.h"

namespace cairn::compact_catalog {
namespace {

using Chunk = std::tuple<std::vector<std::int64_t>, std::uint32_t, std::uint64_t, std::uint64_t>;
using Chunks = std::vector<Chunk>;

void add_tensor(Catalog& catalog, const std::string& fqn, const Extents& shape) {
  catalog.keys.push_back({true, static_cast<std::uint32_t>(catalog.tensors.size())});
  CatalogTensor& tensor = catalog.tensors.emplace_back();
  tensor.fqn = fqn;
  tensor.dtype = DType::kBFloat16;
  tensor.shape = shape;
}

// A chunk of the last tensor.
void add_chunk(Catalog& catalog, const Extents& offsets, const Extents& sizes, const ItemLocation& location) {
  CatalogTensor& tensor = catalog.tensors.back();
  tensor.boxes.insert(tensor.boxes.end(), offsets.begin(), offsets.end());
  tensor.boxes.insert(tensor.boxes.end(), sizes.begin(), sizes.end());
  tensor.locations.push_back(location);
}

void add_value(Catalog& catalog, const std::string& fqn, const ItemLocation& location) {
  catalog.keys.push_back({false, static_cast<std::uint32_t>(catalog.values.size())});
  catalog.values.push_back({fqn, location});
}

// All bytes of `.metadata` before the commit record.
std::string front_of(const Catalog& catalog) {
  const auto metadata = dcp::MetadataTemplate::make(catalog, 1);
  EXPECT_TRUE(metadata.has_value());
  return metadata->render("save", "checkpoint", catalog.files);
}

std::span<const std::byte> bytes_in(const std::string& text) { return std::as_bytes(std::span(text)); }

Chunks chunks_of(const CatalogTensor& tensor, const Box* within = nullptr) {
  Chunks chunks;
  const std::size_t width = 2 * tensor.shape.size();
  for (std::size_t i = 0; i < tensor.chunk_count(); ++i) {
    if (within != nullptr && !intersection(tensor.chunk(i), *within)) continue;
    const ItemLocation& location = tensor.locations[i];
    const auto begin = tensor.boxes.begin() + static_cast<std::ptrdiff_t>(i * width);
    chunks.emplace_back(std::vector<std::int64_t>(begin, begin + static_cast<std::ptrdiff_t>(width)), location.file,
                        location.offset, location.length);
  }
  std::sort(chunks.begin(), chunks.end());
  return chunks;
}

class Opened {
 public:
  explicit Opened(const Catalog& catalog) : front_(front_of(catalog)), source_(bytes_in(front_)) {
    auto opened = CompactCatalog::open(source_, front_.size(), catalog.files.size());
    EXPECT_TRUE(opened.has_value()) << opened.error().what();
    EXPECT_TRUE(opened->has_value());
    compact_.emplace(**std::move(opened));
  }
  const CompactCatalog& operator*() const { return *compact_; }
  const CompactCatalog* operator->() const { return &*compact_; }
  const std::string& front() const { return front_; }

  Catalog find(const std::vector<WantedKey>& wanted) const {
    auto found = compact_->find(wanted);
    EXPECT_TRUE(found.has_value()) << found.error().what();
    return found ? std::move(*found) : Catalog();
  }

 private:
  std::string front_;
  MemorySource source_;
  std::optional<CompactCatalog> compact_;
};

void expect_same_entry(const CatalogTensor& found, const CatalogTensor& saved, const Box* within = nullptr) {
  EXPECT_EQ(found.dtype, saved.dtype);
  EXPECT_EQ(found.shape, saved.shape);
  EXPECT_EQ(found.requires_grad, saved.requires_grad);
  ASSERT_EQ(found.strides == nullptr, saved.strides == nullptr);
  if (saved.strides) {
    EXPECT_EQ(*found.strides, *saved.strides);
  }
  EXPECT_EQ(chunks_of(found), chunks_of(saved, within));
}

// Every key, whole.
void expect_all(const Catalog& catalog) {
  const Opened opened(catalog);
  EXPECT_EQ(opened->key_count(), catalog.keys.size());
  for (const CatalogTensor& tensor : catalog.tensors) {
    const Catalog found = opened.find({{tensor.fqn, true, {}}});
    ASSERT_NE(found.find_tensor(tensor.fqn), nullptr) << tensor.fqn;
    expect_same_entry(*found.find_tensor(tensor.fqn), tensor);
  }
  std::vector<std::string> order;
  const auto visited = opened->for_each(
      [&](const CatalogTensor& tensor) -> Result<void> {
        order.push_back(tensor.fqn);
        return {};
      },
      [&](const CatalogValue& value) -> Result<void> {
        order.push_back(value.fqn);
        return {};
      });
  ASSERT_TRUE(visited.has_value()) << visited.error().what();
  ASSERT_EQ(order.size(), catalog.keys.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Catalog::KeyRef key = catalog.keys[i];
    EXPECT_EQ(order[i], key.is_tensor ? catalog.tensors[key.index].fqn : catalog.values[key.index].fqn);
  }
}

std::vector<std::string> file_names(std::size_t count) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back("__" + std::to_string(i) + "_0.distcp");
  return names;
}

// Each of `ranks` ranks has keys of its own.
Catalog own_keys(std::uint32_t ranks, std::uint64_t keys) {
  Catalog catalog;
  catalog.files = file_names(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::uint64_t offset = 0;
    for (std::uint64_t key = 0; key < keys; ++key, offset += 5000) {
      const std::string name = "rank" + std::to_string(rank) + ".layers." + std::to_string(key) + ".weight";
      if (key % 100 == 99) {
        add_value(catalog, name, {rank, offset, 700});
        continue;
      }
      add_tensor(catalog, name, {16, static_cast<std::int64_t>(key % 7)});
      add_chunk(catalog, {0, 0}, {16, static_cast<std::int64_t>(key % 7)}, {rank, offset, 4900});
    }
  }
  return catalog;
}

TEST(CompactCatalog, FindsTheKeysOfOneRank) {
  const Catalog catalog = own_keys(kSanitized ? 20 : 40, 200);
  expect_all(catalog);
  const Opened opened(catalog);
  std::vector<WantedKey> wanted;
  for (const Catalog::KeyRef& key : catalog.keys) {
    const std::string& fqn = key.is_tensor ? catalog.tensors[key.index].fqn : catalog.values[key.index].fqn;
    if (fqn.starts_with("rank17.")) wanted.push_back({fqn, true, {}});
  }
  wanted.push_back({"rank17.layers.9999.weight", true, {}});
  const Catalog found = opened.find(wanted);
  EXPECT_EQ(found.keys.size(), 200u);
  ASSERT_NE(found.find_value("rank17.layers.99.weight"), nullptr);
  EXPECT_EQ(found.find_value("rank17.layers.99.weight")->location.offset, 99u * 5000);
  EXPECT_EQ(found.find_value("rank17.layers.99.weight")->location.file, 17u);
  EXPECT_EQ(found.find_tensor("rank17.layers.9999.weight"), nullptr);
}

TEST(CompactCatalog, CodesEqualShardsInFewBytes) {
  constexpr std::uint32_t kRanks = 16'384;
  Catalog catalog;
  catalog.files = file_names(kRanks);
  for (int key = 0; key < 3; ++key) {
    add_tensor(catalog, "key" + std::to_string(key), {std::int64_t{kRanks} * 8 - 3, 128});
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      const std::int64_t rows = rank + 1 == kRanks ? 5 : 8;
      add_chunk(catalog, {std::int64_t{rank} * 8, 0}, {rows, 128},
                {rank, 4096, static_cast<std::uint64_t>(rows) * 512});
    }
  }
  EXPECT_LT(compact(catalog).bytes.size(), 300u);
  expect_all(catalog);
  const Opened opened(catalog);
  const Box wanted = Box::make({8 * 99 + 4, 0}, {8, 64}).value();
  const Catalog found = opened.find({{"key1", false, {wanted}}});
  expect_same_entry(*found.find_tensor("key1"), catalog.tensors[1], &wanted);
  EXPECT_EQ(found.find_tensor("key1")->chunk_count(), 2u);
}

// Cuts [0, size) at random places.
std::vector<std::int64_t> random_cuts(std::int64_t size, std::size_t parts, std::mt19937& random) {
  std::vector<std::int64_t> cuts = {0, size};
  for (std::size_t i = 1; i < parts; ++i)
    cuts.push_back(std::uniform_int_distribution<std::int64_t>(1, size - 1)(random));
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// A ragged grid of chunks in random order and at random places; a part of the chunks is left out.
void add_ragged(Catalog& catalog, const std::string& fqn, std::size_t parts, double left_out, std::mt19937& random) {
  const std::vector<std::int64_t> rows = random_cuts(5000, parts, random);
  const std::vector<std::int64_t> columns = random_cuts(3000, parts, random);
  std::vector<std::pair<std::size_t, std::size_t>> cells;
  for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
    for (std::size_t j = 0; j + 1 < columns.size(); ++j) cells.emplace_back(i, j);
  }
  std::shuffle(cells.begin(), cells.end(), random);
  cells.resize(cells.size() - static_cast<std::size_t>(left_out * static_cast<double>(cells.size())));
  add_tensor(catalog, fqn, {5000, 3000});
  catalog.tensors.back().requires_grad = true;
  for (const auto& [i, j] : cells) {
    add_chunk(catalog, {rows[i], columns[j]}, {rows[i + 1] - rows[i], columns[j + 1] - columns[j]},
              {static_cast<std::uint32_t>(random() % catalog.files.size()), random() % 1'000'000, random() % 1000 + 1});
  }
}

TEST(CompactCatalog, FindsTheChunksOfRaggedGrids) {
  constexpr unsigned kSeed = 20'261'123;
  std::mt19937 random(kSeed);
  Catalog catalog;
  catalog.files = file_names(30);
  add_ragged(catalog, "small grid", 6, 0, random);
  add_ragged(catalog, "large grid in groups", 50, 0, random);
  add_ragged(catalog, "small, with holes", 6, 0.3, random);
  add_ragged(catalog, "large, with holes, in groups", 50, 0.1, random);
  expect_all(catalog);
  const Opened opened(catalog);
  for (const CatalogTensor& tensor : catalog.tensors) {
    for (int round = 0; round < 50; ++round) {
      const std::int64_t row = std::uniform_int_distribution<std::int64_t>(0, 4999)(random);
      const std::int64_t column = std::uniform_int_distribution<std::int64_t>(0, 2999)(random);
      const std::int64_t height = std::uniform_int_distribution<std::int64_t>(0, 5000 - row)(random);
      const Box wanted = Box::make({row, column}, {height, std::min<std::int64_t>(3000 - column, 100)}).value();
      const Catalog found = opened.find({{tensor.fqn, false, {wanted}}});
      expect_same_entry(*found.find_tensor(tensor.fqn), tensor, &wanted);
    }
  }
}

TEST(CompactCatalog, ReturnsAChunkOfTwoBoxesOnce) {
  Catalog catalog;
  catalog.files = file_names(4);
  add_tensor(catalog, "w", {8});
  for (std::uint32_t i = 0; i < 4; ++i) add_chunk(catalog, {i * 2}, {2}, {i, 64, 8});
  const Opened opened(catalog);
  const Catalog found = opened.find({{"w", false, {Box::make({0}, {3}).value(), Box::make({1}, {4}).value()}}});
  EXPECT_EQ(chunks_of(*found.find_tensor("w")).size(), 3u);
  EXPECT_EQ(opened.find({{"w", false, {}}}).find_tensor("w")->chunk_count(), 0u);
  EXPECT_EQ(opened.find({{"w", false, {Box::make({0, 0}, {3, 3}).value()}}}).find_tensor("w")->chunk_count(), 0u);
}

TEST(CompactCatalog, CodesScalarsAndEmptyTensors) {
  Catalog catalog;
  catalog.files = file_names(3);
  add_tensor(catalog, "scalar", {});
  add_chunk(catalog, {}, {}, {1, 64, 900});
  add_tensor(catalog, "scalar on three ranks", {});
  for (std::uint32_t i = 0; i < 3; ++i) add_chunk(catalog, {}, {}, {i, 64, 900});
  add_tensor(catalog, "empty", {0, 7});
  add_chunk(catalog, {0, 0}, {0, 7}, {2, 1000, 900});
  add_tensor(catalog, "empty in two chunks", {0, 7});
  add_chunk(catalog, {0, 0}, {0, 3}, {2, 3000, 900});
  add_chunk(catalog, {0, 3}, {0, 4}, {2, 4000, 900});
  add_tensor(catalog, "with an empty shard", {4});
  add_chunk(catalog, {0}, {4}, {0, 5000, 900});
  add_chunk(catalog, {4}, {0}, {1, 5000, 900});
  add_tensor(catalog, "repeated", {4});
  for (std::uint32_t i = 0; i < 3; ++i) add_chunk(catalog, {0}, {4}, {i, 7000, 900});
  add_tensor(catalog, "without chunks", {4});
  add_tensor(catalog, "without bytes", {4});
  add_chunk(catalog, {0}, {4}, {0, 0, 0});
  add_value(catalog, "", {0, 20'000, 1});
  expect_all(catalog);
}

TEST(CompactCatalog, CodesTheStridesOfTensors) {
  Catalog catalog;
  catalog.files.resize(1);
  const std::vector<std::optional<Extents>> lists = {std::nullopt, Extents{3, 1},         Extents{1, 2},
                                                     Extents{},    Extents{0, INT64_MAX}, Extents{1, 2, 3, 4, 5}};
  for (std::size_t i = 0; i < lists.size(); ++i) {
    add_tensor(catalog, "t" + std::to_string(i), {2, 3});
    for (std::int64_t row = 0; row < 2; ++row) add_chunk(catalog, {row, 0}, {1, 3}, {0, 6 * i, 6});
    if (lists[i]) catalog.tensors.back().strides = std::make_shared<const Extents>(*lists[i]);
  }
  ASSERT_TRUE(catalog.index());
  expect_all(catalog);
  EXPECT_EQ(compact(catalog, 1).version, kVersionWithStrides);
  for (CatalogTensor& tensor : catalog.tensors) tensor.strides = nullptr;
  expect_all(catalog);
  EXPECT_EQ(compact(catalog, 1).version, kVersionWithoutStrides);
}

TEST(CompactCatalog, CodesTheOffsetsOfALargeFile) {
  Catalog catalog;
  catalog.files = file_names(2);
  constexpr std::uint64_t kFar = std::uint64_t{1} << 62;
  for (int i = 0; i < 4; ++i) {
    add_tensor(catalog, "key" + std::to_string(i), {2});
    add_chunk(catalog, {0}, {2}, {1, i % 2 == 0 ? kFar : 64, kFar - 1});
  }
  expect_all(catalog);
}

TEST(CompactCatalog, IsLeftOutIfSmallOrTransformed) {
  const Catalog small = own_keys(1, 100);
  EXPECT_TRUE(compact(small).bytes.empty());
  const auto decoded = dcp::MetadataTemplate::make(small);
  const std::string front = decoded->render("save", "checkpoint", small.files);
  const MemorySource source(bytes_in(front));
  const auto opened = CompactCatalog::open(source, front.size(), 1);
  ASSERT_TRUE(opened.has_value()) << opened.error().what();
  EXPECT_FALSE(opened->has_value());

  Catalog transformed = own_keys(2, 5000);
  EXPECT_FALSE(compact(transformed).bytes.empty());
  transformed.transforms.emplace("rank0.layers.0.weight", "zstd");
  EXPECT_TRUE(compact(transformed).bytes.empty());
}

TEST(CompactCatalog, IsReadBackFromAMessage) {
  const Catalog catalog = own_keys(2, 200);
  const auto metadata = dcp::MetadataTemplate::make(catalog, 1);
  std::string message;
  metadata->append_to(message);
  manifest::CodedReader reader(message);
  const auto again = dcp::MetadataTemplate::read(reader);
  ASSERT_TRUE(again.has_value()) << again.error().what();
  EXPECT_EQ(reader.left(), 0u);
  EXPECT_EQ(again->render("save", "checkpoint", catalog.files), metadata->render("save", "checkpoint", catalog.files));
}

TEST(CompactCatalog, IsRecognisedByAllItsBytes) {
  const Catalog catalog = own_keys(3, 40);
  const std::string front = front_of(catalog);
  const std::size_t pickle_bytes = dcp::decode_metadata(bytes_in(front))->pickle_bytes;
  const PickleIdentity pickle{pickle_bytes, crc32(bytes_in(front).first(pickle_bytes))};
  const CatalogBody body = compact(catalog, 1);
  const std::string bytes = front.substr(pickle_bytes);
  EXPECT_TRUE(is_catalog_of(bytes, pickle, body));
  EXPECT_FALSE(is_catalog_of(bytes, {pickle_bytes + 1, pickle.checksum}, body));
  EXPECT_FALSE(is_catalog_of(bytes.substr(1), pickle, body));
  for (std::size_t place = 0; place < bytes.size(); ++place) {
    std::string other = bytes;
    other[place] = static_cast<char>(other[place] ^ 0x10);
    EXPECT_FALSE(is_catalog_of(other, pickle, body)) << place;
  }
  EXPECT_TRUE(is_catalog_of("", pickle, CatalogBody()));
  EXPECT_FALSE(is_catalog_of(bytes, pickle, CatalogBody()));
}

// Every byte of the catalog is covered by a checksum that a full walk checks.
TEST(CompactCatalog, ReportsEveryDamagedByte) {
  std::mt19937 random(7);
  Catalog catalog = own_keys(3, 12);
  add_ragged(catalog, "in groups", 25, 0.1, random);
  const std::string front = front_of(catalog);
  const std::size_t pickle_bytes = dcp::decode_metadata(bytes_in(front))->pickle_bytes;
  const auto walks = [&](const std::string& bytes) {
    const MemorySource source(bytes_in(bytes));
    const auto opened = CompactCatalog::open(source, bytes.size(), catalog.files.size());
    if (!opened || !*opened) return false;
    return (*opened)
        ->for_each([](const CatalogTensor&) -> Result<void> { return {}; },
                   [](const CatalogValue&) -> Result<void> { return {}; })
        .has_value();
  };
  ASSERT_TRUE(walks(front));
  std::string damaged = front;
  for (std::size_t place = pickle_bytes + kFooterBytes; place < front.size(); place += kSanitized ? 7 : 1) {
    damaged[place] = static_cast<char>(front[place] ^ 0x10);
    EXPECT_FALSE(walks(damaged)) << place - pickle_bytes;
    EXPECT_TRUE(is_pickle_intact(bytes_in(damaged), pickle_bytes)) << place - pickle_bytes;
    damaged[place] = front[place];
  }
  damaged[pickle_bytes + 1] ^= 1;  // of the first footer
  EXPECT_TRUE(walks(damaged));
  EXPECT_TRUE(is_pickle_intact(bytes_in(damaged), pickle_bytes));
  damaged = front;
  damaged[pickle_bytes / 2] ^= 1;
  EXPECT_FALSE(is_pickle_intact(bytes_in(damaged), pickle_bytes));
}

TEST(CompactCatalog, RefusesOtherFileCountOrLength) {
  const Catalog catalog = own_keys(3, 40);
  const std::string front = front_of(catalog);
  const MemorySource source(bytes_in(front));
  EXPECT_EQ(CompactCatalog::open(source, front.size(), 4).error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(CompactCatalog::open(source, front.size() + 1, 3).error().code(), ErrorCode::kCorrupt);
  const std::string longer = " " + front;
  const MemorySource shifted(bytes_in(longer));
  EXPECT_EQ(CompactCatalog::open(shifted, longer.size(), 3).error().code(), ErrorCode::kCorrupt);
}

TEST(CompactCatalog, IgnoresALaterVersion) {
  const Catalog catalog = own_keys(3, 40);
  std::string front = front_of(catalog);
  const std::size_t footer = front.size() - kFooterBytes;
  front[footer + 20] = 3;
  const std::uint32_t crc = crc32(bytes_in(front).subspan(footer + 4));
  for (unsigned i = 0; i < 4; ++i) front[footer + i] = static_cast<char>(crc >> (8 * i));
  const MemorySource source(bytes_in(front));
  const auto opened = CompactCatalog::open(source, front.size(), 3);
  ASSERT_TRUE(opened.has_value());
  EXPECT_FALSE(opened->has_value());
}

}  // namespace
}  // namespace cairn::compact_catalog
