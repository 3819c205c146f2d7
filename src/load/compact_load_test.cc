// Loads of checkpoints whose `.metadata` has a compact catalog: the reads of a load, resharding, damage, and verify.
#include <cairn/cairn.h>
#include <cairn/checkpoint.h>
#include <cairn/collectives.h>
#include <cairn/inspect.h>
#include <cairn/save.h>
#include <gtest/gtest.h>
#include <sanitizers.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "checkpoint/open_calls.h"
#include "coordination/testing/as_ranks.h"
#include "core/checksum.h"
#include "format/compact_catalog/footer.h"
#include "format/compact_catalog/writer.h"
#include "format/dcp/metadata_decoder.h"
#include "format/dcp/metadata_template.h"
#include "format/manifest/commit_record.h"
#include "storage/open_directory.h"
#include "storage/testing/view_storage.h"

namespace cairn {
namespace {

namespace filesystem = std::filesystem;

constexpr std::size_t kKeys = 1200;
constexpr std::int64_t kElementsOfKey = 21;  // of each key: not a multiple of any number of ranks
static_assert(kKeys * 4 > compact_catalog::kItemsMin);

// The elements of each key that belong to one of `ranks` ranks.
class ShardedKeys {
 public:
  ShardedKeys(std::size_t rank, std::size_t ranks, std::size_t step) : step_(step) {
    begin_ = kElementsOfKey * static_cast<std::int64_t>(rank) / static_cast<std::int64_t>(ranks);
    end_ = kElementsOfKey * static_cast<std::int64_t>(rank + 1) / static_cast<std::int64_t>(ranks);
    const auto count = static_cast<std::size_t>(end_ - begin_);
    elements_.resize(kKeys * count);
    for (std::size_t key = 0; key < kKeys; ++key) {
      for (std::size_t i = 0; i < count; ++i) elements_[key * count + i] = element(key, i);
      const TensorView view = TensorView::contiguous(elements_.data() + key * count, DType::kInt32, {end_ - begin_});
      EXPECT_TRUE(
          state_.add_chunk(Path{"layers", static_cast<std::int64_t>(key), "weight"}, view, {kElementsOfKey}, {begin_}));
    }
    EXPECT_TRUE(state_.add_value(Path{"step"}, Value(static_cast<std::int64_t>(step))));
  }
  StateDict& dict() { return state_; }

  // Whether all elements are those of `step`.
  bool holds(std::size_t step) {
    step_ = step;
    const auto count = static_cast<std::size_t>(end_ - begin_);
    for (std::size_t i = 0; i < elements_.size(); ++i) {
      if (elements_[i] != element(i / count, i % count)) return false;
    }
    return *state_.value("step")->get_if<std::int64_t>() == static_cast<std::int64_t>(step);
  }

 private:
  std::int32_t element(std::size_t key, std::size_t i) const {
    return static_cast<std::int32_t>(step_ * 1'000'000 + key * 100 + static_cast<std::size_t>(begin_) + i);
  }

  std::size_t step_;
  std::int64_t begin_, end_;
  std::vector<std::int32_t> elements_;
  StateDict state_;
};

class CompactLoad : public testing::Test {
 protected:
  CompactLoad() {
    std::string pattern = (filesystem::temp_directory_path() / "cairn-compact-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
    save_on(4);
  }
  ~CompactLoad() override { filesystem::remove_all(directory_); }

  void save_on(std::size_t ranks) {
    as_ranks(ranks, [&](std::size_t rank, Collectives& collectives) {
      ShardedKeys keys(rank, ranks, 7);
      SaveOptions options;
      options.collectives = &collectives;
      options.durability = Durability::kBuffered;
      const auto report = save(directory_, keys.dict(), options);
      EXPECT_TRUE(report) << report.error().what();
    });
  }

  std::string read_metadata() const {
    std::ifstream file(directory_ / ".metadata", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write_metadata(const std::string& bytes) const {
    std::ofstream(directory_ / ".metadata", std::ios::binary) << bytes;
  }

  static manifest::CommitRecord record_of(const std::string& metadata) {
    return **manifest::read_only_commit_record(MemorySource(std::as_bytes(std::span(metadata))));
  }
  static std::size_t pickle_bytes_of(const std::string& metadata) {
    return dcp::decode_metadata(std::as_bytes(std::span(metadata)))->pickle_bytes;
  }

  filesystem::path directory_;
};

TEST_F(CompactLoad, ReshardsFourRanksToTwoAndOne) {
  for (const std::size_t ranks : {2u, 1u}) {
    as_ranks(ranks, [&](std::size_t rank, Collectives& collectives) {
      ShardedKeys keys(rank, ranks, 0);
      LoadOptions options;
      options.collectives = &collectives;
      const auto report = load(directory_, keys.dict(), options);
      ASSERT_TRUE(report) << report.error().what();
      EXPECT_TRUE(keys.holds(7));
      EXPECT_TRUE(report->warnings.empty());
    });
  }
}

// Reads of `.metadata` are counted by size.
class MeasuredFile final : public storage::ReadableFile {
 public:
  MeasuredFile(std::unique_ptr<storage::ReadableFile> file, std::uint64_t& bytes)
      : file_(std::move(file)), bytes_(bytes) {}
  std::uint64_t size() const override { return file_->size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override {
    bytes_ += target.size();
    return file_->read_at(offset, target);
  }
  std::optional<DirectAlignment> direct_alignment() const override { return file_->direct_alignment(); }
  Result<void> read_direct_at(std::uint64_t offset, std::span<std::byte> target) const override {
    bytes_ += target.size();
    return file_->read_direct_at(offset, target);
  }
  bool is_cached(std::uint64_t offset, std::uint64_t length) const override { return file_->is_cached(offset, length); }

 private:
  std::unique_ptr<storage::ReadableFile> file_;
  std::uint64_t& bytes_;
};

class MeasuredStorage final : public storage::ViewStorage {
 public:
  MeasuredStorage(storage::Storage& storage, std::uint64_t& bytes) : ViewStorage(storage), bytes_(bytes) {}
  Result<std::unique_ptr<storage::ReadableFile>> open(std::string_view name, bool follow_links) const override {
    CAIRN_TRY_ASSIGN(auto file, ViewStorage::open(name, follow_links));
    if (name != kMetadataName) return file;
    return std::unique_ptr<storage::ReadableFile>(std::make_unique<MeasuredFile>(std::move(file), bytes_));
  }

 private:
  std::uint64_t& bytes_;
};

TEST_F(CompactLoad, ReadsASmallPartOfTheMetadata) {
  const auto storage = storage::open_directory(directory_);
  std::uint64_t bytes = 0;
  auto checkpoint = checkpointer::open_in(std::make_unique<MeasuredStorage>(**storage, bytes),
                                          std::string(kMetadataName), checkpointer::Decoding::kWanted);
  ASSERT_TRUE(checkpoint) << checkpoint.error().what();
  std::vector<std::int32_t> element(1);
  StateDict state;
  ASSERT_TRUE(state.add_chunk(Path{"layers", 600, "weight"}, TensorView::contiguous(element.data(), DType::kInt32, {1}),
                              {kElementsOfKey}, {20}));
  const auto report = checkpoint->load(state);
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_EQ(element[0], 7'060'020);
  EXPECT_LT(bytes, filesystem::file_size(directory_ / ".metadata") / 8);

  EXPECT_TRUE(*checkpoint->holds_any(std::vector<std::string>{"no", "layers.600.weight"}));
  EXPECT_FALSE(*checkpoint->holds_any(std::vector<std::string>{"no", "layers.1200.weight"}));
  EXPECT_EQ(*checkpoint->read_value("step")->get_if<std::int64_t>(), 7);
  EXPECT_EQ(checkpoint->read_payload("layers.600.weight").error().code(), ErrorCode::kUnsupported);
  EXPECT_LT(bytes, filesystem::file_size(directory_ / ".metadata") / 4);
  EXPECT_EQ(checkpoint->catalog().keys.size(), kKeys + 1);
  EXPECT_GT(bytes, filesystem::file_size(directory_ / ".metadata"));
}

// The same checkpoint by the catalog and by the pickle alone.
TEST_F(CompactLoad, EntriesEqualThoseOfThePickle) {
  const auto by_catalog = open_to_inspect(directory_);
  const auto by_pickle = open(directory_);
  ASSERT_TRUE(by_catalog && by_pickle);
  EXPECT_EQ(by_catalog->key_count(), by_pickle->key_count());
  EXPECT_EQ(by_catalog->files(), by_pickle->files());
  KeyStream stream(*by_catalog);
  std::size_t place = 0;
  for (auto keys = stream.next(); keys && !keys->empty(); keys = stream.next()) {
    for (const KeySummary& key : *keys) {
      const Catalog::KeyRef& ref = by_pickle->catalog().keys.at(place++);
      ASSERT_EQ(key.is_tensor, ref.is_tensor);
      const auto entry = by_catalog->entry(key.fqn);
      ASSERT_TRUE(entry && *entry) << key.fqn;
      if (!key.is_tensor) {
        EXPECT_EQ(key.fqn, by_pickle->catalog().values[ref.index].fqn);
        EXPECT_EQ(std::get<CatalogValue>(**entry).location.offset,
                  by_pickle->catalog().values[ref.index].location.offset);
        continue;
      }
      const CatalogTensor& expected = by_pickle->catalog().tensors[ref.index];
      const auto& tensor = std::get<CatalogTensor>(**entry);
      ASSERT_EQ(key.fqn, expected.fqn);
      EXPECT_EQ(key.dtype, expected.dtype);
      EXPECT_EQ(key.shape, expected.shape);
      ASSERT_EQ(tensor.boxes, expected.boxes);
      ASSERT_EQ(tensor.chunk_count(), expected.chunk_count());
      for (std::size_t i = 0; i < tensor.chunk_count(); ++i) {
        ASSERT_EQ(by_catalog->files()[tensor.locations[i].file], by_pickle->files()[expected.locations[i].file]);
        ASSERT_EQ(tensor.locations[i].offset, expected.locations[i].offset);
        ASSERT_EQ(tensor.locations[i].length, expected.locations[i].length);
      }
    }
  }
  EXPECT_EQ(place, kKeys + 1);
  EXPECT_FALSE(by_catalog->damage());
  EXPECT_FALSE(by_catalog->entry("layers.1200.weight")->has_value());
}

TEST_F(CompactLoad, ReadsFewBytesForOneKey) {
  const auto storage = storage::open_directory(directory_);
  std::uint64_t bytes = 0;
  auto checkpoint = checkpointer::open_in(std::make_unique<MeasuredStorage>(**storage, bytes),
                                          std::string(kMetadataName), checkpointer::Decoding::kWanted);
  ASSERT_TRUE(checkpoint) << checkpoint.error().what();
  const std::uint64_t size = filesystem::file_size(directory_ / ".metadata");
  EXPECT_EQ(checkpoint->key_count(), kKeys + 1);
  const std::uint64_t opened = bytes;
  EXPECT_LT(opened, size / 32);
  for (std::size_t key = 600; key < 620; ++key) {  // neighbours share a block, which is read once or twice
    ASSERT_TRUE(checkpoint->entry("layers." + std::to_string(key) + ".weight")->has_value());
  }
  EXPECT_LT(bytes - opened, size / 8);
  const std::uint64_t looked = bytes;
  EXPECT_EQ(checkpoint->outline()->keys.size(), kKeys + 1);
  EXPECT_LT(bytes - looked, size / 4);
}

// The keys after a damaged block come from the pickle, and none comes twice.
TEST_F(CompactLoad, KeyStreamPassesADamagedBlock) {
  std::string metadata = read_metadata();
  const std::size_t front = record_of(metadata).front_bytes;
  const std::size_t pickle = pickle_bytes_of(metadata);
  const std::size_t places[] = {pickle + 100, pickle + (front - pickle) / 2};
  for (const std::size_t place : places) {
    metadata[place] = static_cast<char>(metadata[place] ^ 1);
    write_metadata(metadata);
    const auto checkpoint = open_to_inspect(directory_);
    ASSERT_TRUE(checkpoint) << checkpoint.error().what();
    const auto outline = checkpoint->outline();
    ASSERT_TRUE(outline) << outline.error().what();
    ASSERT_EQ(outline->keys.size(), kKeys + 1);
    for (std::size_t i = 0; i < kKeys; ++i) {
      ASSERT_EQ(outline->tensors[i].fqn, checkpoint->catalog().tensors[i].fqn);
    }
    EXPECT_TRUE(checkpoint->damage().has_value()) << place;
    metadata[place] = static_cast<char>(metadata[place] ^ 1);
  }
}

TEST_F(CompactLoad, NamesAMissingKeyWithItsNearest) {
  ShardedKeys keys(0, 1, 0);
  std::vector<std::int32_t> element(1);
  ASSERT_TRUE(keys.dict().add_tensor("layers.5.weigth", TensorView::contiguous(element.data(), DType::kInt32, {1})));
  const auto report = load(directory_, keys.dict());
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kMissingKey);
  EXPECT_NE(std::string(report.error().what()).find("layers.5.weight"), std::string::npos) << report.error().what();
  const auto partial = load(directory_, keys.dict(), {.allow_partial = true});
  ASSERT_TRUE(partial) << partial.error().what();
  EXPECT_EQ(partial->missing, std::vector<std::string>{"layers.5.weigth"});
  EXPECT_TRUE(keys.holds(7));
}

// What a reader without knowledge of the catalog does: all of `.metadata` before the record counts as covered, and the
// pickle ends at its STOP.
TEST_F(CompactLoad, EarlierReaderReadsThePickle) {
  const std::string metadata = read_metadata();
  constexpr std::size_t kVersionFromEnd = 12;
  EXPECT_EQ(metadata[metadata.size() - kVersionFromEnd], 3);  // with a plan: several ranks have saved
  const auto record = manifest::read_commit_record(std::as_bytes(std::span(metadata)));
  ASSERT_TRUE(record) << record.error().what();
  EXPECT_EQ((*record)->files.size(), 4u);
  const auto decoded = dcp::decode_metadata(std::as_bytes(std::span(metadata)));
  ASSERT_TRUE(decoded) << decoded.error().what();
  EXPECT_EQ(decoded->catalog.keys.size(), kKeys + 1);
  EXPECT_LT(decoded->pickle_bytes, (*record)->front_bytes);
}

// A flipped bit in each part: the load takes the pickle and tells so; `verify` reports the damage.
TEST_F(CompactLoad, DamagedCatalogLeavesThePickle) {
  const std::string metadata = read_metadata();
  const std::size_t front = record_of(metadata).front_bytes;
  const std::size_t pickle = pickle_bytes_of(metadata);
  const std::array<std::pair<std::size_t, bool>, 5> places{{{pickle + 5, false},  // the first footer: not needed
                                                            {pickle + compact_catalog::kFooterBytes + 100, true},
                                                            {front - compact_catalog::kFooterBytes - 3, true},
                                                            {front - compact_catalog::kFooterBytes + 10, true},
                                                            {front - 1, false}}};  // the magic: no catalog to be seen
  for (std::size_t i = 0; i < places.size(); i += kSanitized ? 2 : 1) {
    const auto& [place, is_told] = places[i];
    std::string damaged = metadata;
    damaged[place] = static_cast<char>(damaged[place] ^ 4);
    write_metadata(damaged);
    ShardedKeys keys(0, 1, 0);
    const auto report = load(directory_, keys.dict());
    ASSERT_TRUE(report) << report.error().what();
    EXPECT_TRUE(keys.holds(7));
    if (is_told) EXPECT_EQ(report->warnings.size(), 1u) << place - pickle;
    const auto checkpoint = open(directory_);
    ASSERT_TRUE(checkpoint) << checkpoint.error().what();
    EXPECT_TRUE(checkpoint->damage().has_value());
    const auto verified = verify(directory_);
    ASSERT_TRUE(verified) << verified.error().what();
    EXPECT_FALSE(verified->problems.empty()) << place - pickle;
  }
}

TEST_F(CompactLoad, LoadsDespiteADamagedPickle) {
  std::string metadata = read_metadata();
  metadata[pickle_bytes_of(metadata) / 2] ^= 4;
  write_metadata(metadata);
  EXPECT_EQ(open(directory_).error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(verify(directory_).error().code(), ErrorCode::kCorrupt);
  // The catalog is intact, and its chunks are checked against the trailers of the data files.
  ShardedKeys keys(0, 1, 0);
  const auto report = load(directory_, keys.dict());
  EXPECT_TRUE(report) << report.error().what();
  EXPECT_TRUE(keys.holds(7));
}

// `.metadata` with the catalog of `compact` behind its own pickle.
std::string with_catalog(const std::string& metadata, const Catalog& compact) {
  manifest::CommitRecord record = **manifest::read_only_commit_record(MemorySource(std::as_bytes(std::span(metadata))));
  std::string front = metadata.substr(0, dcp::decode_metadata(std::as_bytes(std::span(metadata)))->pickle_bytes);
  compact_catalog::append_catalog(front, compact_catalog::compact(compact, 1));
  record.front_bytes = front.size();
  record.front_checksum = crc32(std::as_bytes(std::span(front)));
  return front + manifest::encode_commit_record(record);
}

TEST_F(CompactLoad, VerifyComparesCatalogAndPickle) {
  ASSERT_TRUE(verify(directory_)->problems.empty());
  const std::string metadata = read_metadata();
  const auto problems_with = [&](const std::function<void(Catalog&)>& change) {
    Catalog catalog = std::move(dcp::decode_metadata(std::as_bytes(std::span(metadata)))->catalog);
    change(catalog);
    write_metadata(with_catalog(metadata, catalog));
    return verify(directory_)->problems;
  };
  EXPECT_TRUE(problems_with([](Catalog&) {}).empty());
  const std::array<std::function<void(CatalogTensor&)>, 6> changes{
      [](CatalogTensor& tensor) { tensor.dtype = DType::kFloat32; },
      [](CatalogTensor& tensor) { tensor.requires_grad = true; },
      [](CatalogTensor& tensor) { tensor.locations[1].offset += 64; },
      [](CatalogTensor& tensor) { tensor.locations[1].file = tensor.locations[0].file; },
      [](CatalogTensor& tensor) { std::swap(tensor.boxes[0], tensor.boxes[2]); },
      [](CatalogTensor& tensor) {
        tensor.boxes.resize(2);
        tensor.locations.resize(1);
      }};
  for (std::size_t i = 0; i < changes.size(); i += kSanitized ? 5 : 1) {
    const auto problems = problems_with([&](Catalog& catalog) { changes[i](catalog.tensors[3]); });
    ASSERT_EQ(problems.size(), 1u);
    EXPECT_EQ(problems[0].key(), "layers.3.weight");
  }
  EXPECT_FALSE(problems_with([](Catalog& catalog) { catalog.values[0].location.length += 1; }).empty());
  EXPECT_FALSE(problems_with([](Catalog& catalog) { catalog.keys.pop_back(); }).empty());
  EXPECT_FALSE(problems_with([](Catalog& catalog) { catalog.keys[1] = catalog.keys[0]; }).empty());
}

TEST_F(CompactLoad, VerifyFindsItemsWithoutAKey) {
  const std::string metadata = read_metadata();
  const auto problems_without = [&](const std::function<void(Catalog&)>& drop) {
    Catalog catalog = std::move(dcp::decode_metadata(std::as_bytes(std::span(metadata)))->catalog);
    drop(catalog);
    std::string front =
        dcp::MetadataTemplate::make(catalog, 1'000'000)->render(*catalog.save_id, "checkpoint", catalog.files);
    manifest::CommitRecord record = record_of(metadata);
    record.front_bytes = front.size();
    record.front_checksum = crc32(std::as_bytes(std::span(front)));
    write_metadata(front + manifest::encode_commit_record(record));
    return verify(directory_)->problems;
  };
  EXPECT_TRUE(problems_without([](Catalog&) {}).empty());
  const auto without_key = problems_without([](Catalog& catalog) { catalog.keys.erase(catalog.keys.begin() + 3); });
  ASSERT_EQ(without_key.size(), 4u) << "a chunk on each rank";
  EXPECT_EQ(without_key[0].key(), "layers.3.weight");
  EXPECT_TRUE(without_key[0].file());
  const auto without_keys = problems_without([](Catalog& catalog) { catalog.keys.clear(); });
  EXPECT_EQ(without_keys.size(), 4u) << "the files";
}

// A wrong catalog with true checksums never gives wrong bytes: the trailers of the data files contradict it.
TEST_F(CompactLoad, NeverLoadsTheBytesOfAnotherKey) {
  const std::string metadata = read_metadata();
  Catalog catalog = std::move(dcp::decode_metadata(std::as_bytes(std::span(metadata)))->catalog);
  std::swap(catalog.tensors[3].locations, catalog.tensors[4].locations);
  write_metadata(with_catalog(metadata, catalog));
  ShardedKeys keys(0, 1, 0);
  EXPECT_EQ(load(directory_, keys.dict()).error().code(), ErrorCode::kCorrupt);
}

TEST_F(CompactLoad, ReplacedCheckpointIsNotRead) {
  const auto checkpoint = open_to_load(directory_);
  ASSERT_TRUE(checkpoint);
  save_on(2);
  ShardedKeys keys(0, 1, 0);
  EXPECT_EQ(checkpoint->load(keys.dict()).error().code(), ErrorCode::kReplaced);
  ASSERT_TRUE(load(directory_, keys.dict()));
  EXPECT_TRUE(keys.holds(7));
}

TEST_F(CompactLoad, AsynchronousSaveHasACatalog) {
  const auto asynchronous = directory_ / "asynchronous";
  as_ranks(4, [&](std::size_t rank, Collectives& collectives) {
    ShardedKeys keys(rank, 4, 8);
    AsyncCheckpointer checkpointer;
    AsyncSaveOptions options;
    options.save.collectives = &collectives;
    const auto saved = checkpointer.save(asynchronous, keys.dict(), options);
    ASSERT_TRUE(saved) << saved.error().what();
    const Result<AsyncSaveReport>& report = saved->write.get();
    ASSERT_TRUE(report) << report.error().what();
  });
  ShardedKeys keys(0, 1, 0);
  ASSERT_TRUE(load(asynchronous, keys.dict()));
  EXPECT_TRUE(keys.holds(8));
  EXPECT_TRUE(verify(asynchronous)->problems.empty());
  std::ifstream file(asynchronous / ".metadata", std::ios::binary);
  const std::string metadata{std::istreambuf_iterator<char>(file), {}};
  EXPECT_GT(record_of(metadata).front_bytes, pickle_bytes_of(metadata));
}

}  // namespace
}  // namespace cairn
