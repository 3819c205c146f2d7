#include "format/dcp/location_join.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace cairn::dcp {
namespace {

using Numbers = std::vector<std::int64_t>;
using Kind = LocationJoin::Target::Kind;

// The tensor "t" of shape {4, 4}, whose chunks are rows that begin where `rows` says, and the values "v0", "v1", ...
Catalog catalog_of(const Numbers& rows, std::size_t value_count, std::vector<std::string> files = {"f", "g"}) {
  Catalog catalog;
  catalog.files = std::move(files);
  CatalogTensor tensor;
  tensor.fqn = "t";
  tensor.shape = {4, 4};
  for (const std::int64_t row : rows) {
    for (const std::int64_t number : {row, std::int64_t{0}, std::int64_t{1}, std::int64_t{4}})
      tensor.boxes.push_back(number);
  }
  tensor.locations.resize(rows.size());
  catalog.tensors.push_back(std::move(tensor));
  for (std::size_t i = 0; i < value_count; ++i) catalog.values.push_back({"v" + std::to_string(i), {}});
  EXPECT_TRUE(catalog.index());
  return catalog;
}

void assign_row(LocationJoin& join, std::int64_t row, std::optional<std::int64_t> hint, std::uint64_t offset) {
  const std::array offsets{row, std::int64_t{0}};
  join.assign(join.find("t"), std::span<const std::int64_t>(offsets), hint, {0, offset, 10});
}

Numbers offsets_in(const Catalog& catalog) {
  Numbers offsets;
  for (const ItemLocation& location : catalog.tensors[0].locations) {
    offsets.push_back(location.length == 0 ? -1 : static_cast<std::int64_t>(location.offset));
  }
  return offsets;
}

// The values lie at these places; the result of finish().
Result<void> join_values(const std::vector<ItemLocation>& places, std::vector<std::string> files = {"f", "g"}) {
  Catalog catalog = catalog_of({}, places.size(), std::move(files));
  LocationJoin join(catalog);
  for (std::size_t i = 0; i < places.size(); ++i) {
    join.assign(join.find("v" + std::to_string(i)), std::nullopt, std::nullopt, places[i]);
  }
  return join.finish();
}

TEST(LocationJoin, FindsTensorsAndValuesByName) {
  Catalog catalog = catalog_of({0}, 2);
  const LocationJoin join(catalog);
  EXPECT_EQ(join.find("t").kind, Kind::kTensor);
  EXPECT_EQ(join.find("v1").kind, Kind::kValue);
  EXPECT_EQ(join.find("v1").index, 1u);
  EXPECT_EQ(join.find("v2").kind, Kind::kNothing);
}

TEST(LocationJoin, PlacesAChunkForAnyHint) {
  for (const std::optional<std::int64_t> hint :
       {std::optional<std::int64_t>(), std::optional<std::int64_t>(0), std::optional<std::int64_t>(1),
        std::optional<std::int64_t>(3), std::optional<std::int64_t>(-1), std::optional<std::int64_t>(INT64_MAX)}) {
    Catalog catalog = catalog_of({3, 0, 2}, 0);
    LocationJoin join(catalog);
    assign_row(join, 2, hint, 200);
    assign_row(join, 3, hint, 300);
    ASSERT_TRUE(join.finish());
    EXPECT_EQ(offsets_in(catalog), (Numbers{300, -1, 200}));
  }
}

TEST(LocationJoin, PassesOverItemsOfNoChunk) {
  Catalog catalog = catalog_of({0, 1}, 0);
  LocationJoin join(catalog);
  assign_row(join, 2, std::nullopt, 200);
  const std::array three{std::int64_t{0}, std::int64_t{0}, std::int64_t{0}};
  join.assign(join.find("t"), std::span<const std::int64_t>(three), 0, {0, 5, 10});
  join.assign(join.find("t"), std::nullopt, 0, {0, 6, 10});
  join.assign(join.find("nothing"), std::nullopt, 0, {0, 7, 10});
  ASSERT_TRUE(join.finish());
  EXPECT_EQ(offsets_in(catalog), (Numbers{-1, -1}));
}

TEST(LocationJoin, GivesEqualChunksOnePlace) {
  Catalog catalog = catalog_of({1, 0, 1, 0, 1}, 0);
  LocationJoin join(catalog);
  assign_row(join, 1, 2, 100);
  assign_row(join, 0, std::nullopt, 50);
  ASSERT_TRUE(join.finish());
  EXPECT_EQ(offsets_in(catalog), (Numbers{100, 50, 100, 50, 100}));
}

TEST(LocationJoin, AcceptsValuesThatShareNoByte) {
  EXPECT_TRUE(join_values({{0, 10, 10}, {0, 0, 10}, {0, 20, 1}}));
  EXPECT_TRUE(join_values({{0, 0, 10}, {1, 0, 10}})) << "of two files";
  EXPECT_TRUE(join_values({{0, 0, 10}, {0, 5, 0}})) << "a value without bytes has no place";
}

TEST(LocationJoin, RefusesValuesThatShareBytes) {
  for (const std::vector<ItemLocation>& places : std::vector<std::vector<ItemLocation>>{
           {{0, 0, 10}, {0, 0, 10}},
           {{0, 9, 10}, {0, 0, 10}},
           {{0, 0, 100}, {1, 0, 10}, {0, 99, 10}},
           {{0, 0, UINT64_MAX}, {0, UINT64_MAX, 1}, {0, 5, 1}},
       }) {
    const auto joined = join_values(places);
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error().code(), ErrorCode::kCorrupt);
    EXPECT_TRUE(joined.error().key()) << joined.error().what();
  }
}

// Otherwise a small file would name one large value under many keys, once for each spelling.
TEST(LocationJoin, FindsAFileByAnySpelling) {
  for (const std::string spelling : {"./f", ".//f", "f/.", "././f/"}) {
    EXPECT_FALSE(join_values({{0, 0, 10}, {1, 5, 10}}, {"f", spelling})) << spelling;
  }
  for (const std::string other : {".f", "f.", "f/g", "./g", ""}) {
    EXPECT_TRUE(join_values({{0, 0, 10}, {1, 5, 10}}, {"f", other})) << other;
  }
  EXPECT_FALSE(join_values({{0, 0, 10}, {1, 5, 10}}, {"a/b", "a/.//b"}));
}

}  // namespace
}  // namespace cairn::dcp
