#include "format/dcp/metadata_records.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "format/pickle/machine.h"
#include "format/testing/metadata_pickles.h"

namespace cairn::dcp {
namespace {

using pickle::Node;
using Part = Handmade::Part;

constexpr std::string_view kFilesystem = "torch.distributed.checkpoint.filesystem";

// A pickled list of objects, read with MetadataRecords.
class Folded {
 public:
  explicit Folded(const std::vector<Part>& objects)
      : bytes_(list_of(objects)),
        records_(bytes_.size()),
        graph_(pickle::parse(as_bytes(bytes_), {}, &records_).value()) {
    for (const Node node : graph_.elements(graph_.root())) nodes_.push_back(node);
  }

  std::optional<std::vector<std::int64_t>> chunk(std::size_t i) const {
    const auto numbers = records_.chunk(graph_, nodes_[i]);
    if (!numbers) return std::nullopt;
    return std::vector(numbers->begin(), numbers->end());
  }
  std::optional<IndexRecord> index(std::size_t i) const { return records_.index(graph_, nodes_[i]); }
  std::optional<LocationRecord> location(std::size_t i) const { return records_.location(graph_, nodes_[i]); }
  bool is_folded(std::size_t i) const { return graph_.is(nodes_[i], pickle::Kind::kFolded); }
  std::string name(std::uint32_t number) { return std::string(records_.names()[number]); }
  std::string path(std::uint32_t number) { return std::string(records_.paths()[number]); }
  Result<std::optional<Value>> resolve(std::size_t i, std::uint64_t budget_bytes = 1000) {
    ByteBudget budget(budget_bytes);
    return records_.resolve(graph_, nodes_[i], budget);
  }
  Result<std::optional<Value>> resolve(std::size_t i, ByteBudget& budget) {
    return records_.resolve(graph_, nodes_[i], budget);
  }

 private:
  static std::string list_of(const std::vector<Part>& objects) {
    Writer writer(4);
    writer.empty_list();
    writer.mark();
    for (const Part& object : objects) object(writer);
    writer.appends();
    writer.stop();
    return std::move(writer).take();
  }

  std::string bytes_;
  MetadataRecords records_;
  pickle::Graph graph_;
  std::vector<Node> nodes_;
};

Part text(std::string value) {
  return [value](Writer& w) { w.text(value); };
}
Part none() {
  return [](Writer& w) { w.none(); };
}
Part object(std::string_view module, std::string name, std::vector<std::pair<std::string, Part>> attributes) {
  return [=](Writer& w) { Handmade::object(w, module, name, attributes); };
}
Part chunk(std::vector<std::int64_t> offsets, std::vector<std::int64_t> sizes) {
  return object(kModule, "ChunkStorageMetadata",
                {{"offsets", Handmade::size(std::move(offsets))}, {"sizes", Handmade::size(std::move(sizes))}});
}
Part index(std::string fqn, Part hint, std::vector<std::int64_t> offsets) {
  return object(
      kModule, "MetadataIndex",
      {{"fqn", text(std::move(fqn))}, {"index", std::move(hint)}, {"offset", Handmade::size(std::move(offsets))}});
}
Part location(std::string path, std::int64_t offset, std::int64_t length) {
  return object(kFilesystem, "_StorageInfo",
                {{"relative_path", text(std::move(path))},
                 {"offset", Handmade::number(offset)},
                 {"length", Handmade::number(length)}});
}

TEST(MetadataRecords, RecordsTheObjectsOfAChunk) {
  Folded folded({chunk({0, 5}, {3, 4}), index("w", Handmade::number(7), {1, 2}), location("f", 1ll << 40, 6)});
  EXPECT_EQ(folded.chunk(0), (std::vector<std::int64_t>{0, 5, 3, 4}));
  const std::optional<IndexRecord> record = folded.index(1);
  ASSERT_TRUE(record);
  EXPECT_EQ(folded.name(record->name), "w");
  EXPECT_EQ(record->hint, 7);
  ASSERT_TRUE(record->offsets);
  EXPECT_EQ(std::vector(record->offsets->begin(), record->offsets->end()), (std::vector<std::int64_t>{1, 2}));
  const std::optional<LocationRecord> place = folded.location(2);
  ASSERT_TRUE(place);
  EXPECT_EQ(folded.path(place->path), "f");
  EXPECT_EQ(place->offset, 1ll << 40);
  EXPECT_EQ(place->length, 6);
}

TEST(MetadataRecords, ReturnsARecordOnlyAsItsOwnType) {
  const Folded folded({chunk({}, {}), index("w", none(), {}), location("f", 1, 2)});
  for (const std::size_t i : {0u, 1u, 2u}) {
    EXPECT_EQ(folded.chunk(i).has_value(), i == 0);
    EXPECT_EQ(folded.index(i).has_value(), i == 1);
    EXPECT_EQ(folded.location(i).has_value(), i == 2);
  }
  EXPECT_FALSE(folded.index(1)->hint);
}

TEST(MetadataRecords, MakesARecordOfTheIndexOfAValue) {
  Folded folded({object(kModule, "MetadataIndex", {{"fqn", text("v")}, {"index", none()}})});
  const std::optional<IndexRecord> record = folded.index(0);
  ASSERT_TRUE(record);
  EXPECT_EQ(folded.name(record->name), "v");
  EXPECT_FALSE(record->offsets);
  EXPECT_FALSE(record->hint);
}

// From the third object on, an object of the same opcodes is recognised without a graph.
TEST(MetadataRecords, SeparatesObjectsOfEqualOpcodes) {
  std::vector<Part> objects;
  for (std::int64_t i = 0; i < 20; ++i) {
    const std::string name = i % 3 == 0 ? "fqn" : "name" + std::to_string(i % 5);
    objects.push_back(chunk({i * i * i * 1000, 0}, {i, 1}));
    objects.push_back(index(name, Handmade::number(i), {i * 70'000, 0}));
    objects.push_back(location(name, i, i << 33));
  }
  Folded folded(objects);
  for (std::int64_t i = 0; i < 20; ++i) {
    SCOPED_TRACE(i);
    const std::string name = i % 3 == 0 ? "fqn" : "name" + std::to_string(i % 5);
    const auto at = static_cast<std::size_t>(3 * i);
    EXPECT_EQ(folded.chunk(at), (std::vector<std::int64_t>{i * i * i * 1000, 0, i, 1}));
    const std::optional<IndexRecord> record = folded.index(at + 1);
    ASSERT_TRUE(record && record->offsets);
    EXPECT_EQ(folded.name(record->name), name);
    EXPECT_EQ(record->hint, i);
    EXPECT_EQ((*record->offsets)[0], i * 70'000);
    const std::optional<LocationRecord> place = folded.location(at + 2);
    ASSERT_TRUE(place);
    EXPECT_EQ(folded.path(place->path), name);
    EXPECT_EQ(place->offset, i);
    EXPECT_EQ(place->length, i << 33);
  }
}

TEST(MetadataRecords, LeavesUnusualObjectsInTheGraph) {
  const std::vector<Part> objects = {
      chunk({0, 0}, {1}),
      chunk(std::vector<std::int64_t>(65, 0), std::vector<std::int64_t>(65, 1)),
      object(kModule, "ChunkStorageMetadata", {{"sizes", Handmade::size({1})}, {"offsets", Handmade::size({0})}}),
      object(kModule, "ChunkStorageMetadata", {{"offsets", Handmade::size({0})}}),
      object(kModule, "ChunkStorageMetadata", {{"offsets", none()}, {"sizes", Handmade::size({1})}}),
      object("another.module", "ChunkStorageMetadata",
             {{"offsets", Handmade::size({0})}, {"sizes", Handmade::size({1})}}),
      index("w", Handmade::number(-1), {0}),
      index("w", Handmade::number(UINT32_MAX), {0}),
      index("w", text("0"), {0}),
      object(kModule, "MetadataIndex", {{"fqn", Handmade::number(1)}, {"index", none()}}),
      object(kFilesystem, "_StorageInfo",
             {{"relative_path", text("f")}, {"offset", text("0")}, {"length", Handmade::number(1)}}),
      object(kFilesystem, "_StorageInfo",
             {{"relative_path", none()}, {"offset", Handmade::number(0)}, {"length", Handmade::number(1)}}),
  };
  const Folded folded(objects);
  for (std::size_t i = 0; i < objects.size(); ++i) EXPECT_FALSE(folded.is_folded(i)) << i;
}

TEST(MetadataRecords, ReturnsTheOriginalObject) {
  Folded folded({chunk({0}, {3}), index("w", Handmade::number(7), {1}), location("f", 5, 6), text("no object")});
  const auto attribute = [&](std::size_t i, std::size_t place) {
    const Value value = *folded.resolve(i).value();
    return value.object()->state.get_if<Dict>()->items[place];
  };
  const auto class_of = [&](std::size_t i) { return (*folded.resolve(i).value()).object()->qualified_name(); };
  EXPECT_EQ(class_of(0), std::string(kModule) + ".ChunkStorageMetadata");
  EXPECT_EQ(class_of(1), std::string(kModule) + ".MetadataIndex");
  EXPECT_EQ(class_of(2), std::string(kFilesystem) + "._StorageInfo");
  EXPECT_EQ(attribute(1, 0).second, Value("w"));
  EXPECT_EQ(attribute(1, 1).second, Value(std::int64_t{7}));
  EXPECT_EQ(attribute(2, 2).second, Value(std::int64_t{6}));
  EXPECT_FALSE(folded.resolve(3).value());
  ByteBudget budget(0);
  ASSERT_TRUE(budget.charge(budget.left()));
  EXPECT_EQ(folded.resolve(0, budget).error().code(), ErrorCode::kUnsafe);
}

}  // namespace
}  // namespace cairn::dcp
