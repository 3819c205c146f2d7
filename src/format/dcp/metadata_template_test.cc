#include "format/dcp/metadata_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "format/testing/metadata_pickles.h"

namespace cairn::dcp {
namespace {

TEST(MetadataTemplate, RendersTheSameCatalog) {
  const auto decoded = decode_metadata(as_bytes(kFromTorch));
  ASSERT_TRUE(decoded.has_value());
  const auto layout = MetadataTemplate::make(decoded->catalog);
  ASSERT_TRUE(layout.has_value());
  const std::string rendered =
      layout->render("0b7f5a2e-6a5d-4f7e-9a51-1f2e3d4c5b6a", "some/where", decoded->catalog.files);
  const auto again = decode_metadata(as_bytes(rendered));
  ASSERT_TRUE(again.has_value()) << again.error().what();
  expect_catalog_of_torch(again->catalog);
  expect_small_entries_of_torch(again->catalog);
  EXPECT_EQ(again->catalog.checkpoint_id, "some/where");
}

TEST(MetadataTemplate, KeepsTheStridesOfTensors) {
  auto decoded = decode_metadata(as_bytes(kFromTorch));
  ASSERT_TRUE(decoded.has_value());
  std::vector<CatalogTensor>& tensors = decoded->catalog.tensors;
  ASSERT_GE(tensors.size(), 2u);
  for (const Extents& strides : {Extents{}, Extents{7}, Extents{1, 9}, Extents{0, 0, 0}, Extents{5, 4, 3, 2, 1}}) {
    tensors[0].strides = std::make_shared<const Extents>(strides);
    const auto rendered = MetadataTemplate::make(decoded->catalog)->render("id", "place", decoded->catalog.files);
    const auto again = decode_metadata(as_bytes(rendered));
    ASSERT_TRUE(again.has_value()) << again.error().what();
    ASSERT_NE(again->catalog.tensors[0].strides, nullptr);
    EXPECT_EQ(*again->catalog.tensors[0].strides, strides);
    EXPECT_EQ(again->catalog.tensors[1].strides, nullptr);
  }
}

TEST(MetadataTemplate, HasSlotsForNamesOfAnyLength) {
  const auto decoded = decode_metadata(as_bytes(kFromTorch));
  ASSERT_TRUE(decoded.has_value());
  const auto layout = MetadataTemplate::make(decoded->catalog);
  ASSERT_TRUE(layout.has_value());
  std::vector<std::string> files = {std::string(300, 'a'), ""};
  ASSERT_EQ(layout->file_count(), files.size());
  const auto again = decode_metadata(as_bytes(layout->render("another id", std::string(70'000, 'c'), files)));
  ASSERT_TRUE(again.has_value()) << again.error().what();
  const auto file_of = [](const Catalog& catalog, std::string_view fqn, std::size_t chunk) {
    return catalog.files[catalog.find_tensor(fqn)->locations[chunk].file];
  };
  for (const std::size_t chunk : {0u, 1u}) {
    const std::uint32_t number = decoded->catalog.find_tensor("model.w")->locations[chunk].file;
    EXPECT_EQ(file_of(again->catalog, "model.w", chunk), files[number]);
  }
  EXPECT_EQ(again->catalog.save_id, "another id");
  EXPECT_EQ(again->catalog.checkpoint_id, std::string(70'000, 'c'));
}

TEST(MetadataTemplate, KeepsUnknownAttributes) {
  Handmade handmade;
  handmade.more.emplace_back("mcore_data", [](Writer& w) {
    w.empty_list();
    w.mark();
    Handmade::item(w, {1, 2}, Handmade::number(3), 4, 5);
    Handmade::chunk(w, {1}, {2});
    w.global("megatron.core", "Thing");
    w.integer(7);
    w.tuple(1);
    w.reduce();
    w.appends();
  });
  handmade.more.emplace_back("planner_data", [](Writer& w) { w.text("not a mapping"); });
  const auto decoded = handmade.decode();
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what();
  ASSERT_EQ(decoded->catalog.extra.size(), 2u);
  const List* kept = decoded->catalog.extra[0].second.get_if<List>();
  ASSERT_NE(kept, nullptr);
  ASSERT_EQ(kept->items.size(), 4u);
  EXPECT_EQ(kept->items[0].object()->qualified_name(), std::string(kModule) + ".MetadataIndex");
  const auto layout = MetadataTemplate::make(decoded->catalog);
  ASSERT_TRUE(layout.has_value());
  const auto again = decode_metadata(as_bytes(layout->render("", "", decoded->catalog.files)));
  ASSERT_TRUE(again.has_value()) << again.error().what();
  EXPECT_EQ(again->catalog.extra.size(), 2u);
  for (const auto& attribute : decoded->catalog.extra) {
    EXPECT_NE(std::find(again->catalog.extra.begin(), again->catalog.extra.end(), attribute),
              again->catalog.extra.end())
        << attribute.first;
  }
}

// A catalog of one tensor in two files, as a trainer's plan makes it.
MetadataTemplate small_template() {
  Catalog catalog;
  catalog.files = {"f0", "f1"};
  CatalogTensor tensor;
  tensor.fqn = "t";
  tensor.shape = {2};
  tensor.boxes = {0, 1, 1, 1};
  tensor.locations = {{0, 0, 10}, {1, 0, 10}};
  catalog.tensors.push_back(std::move(tensor));
  catalog.keys.push_back({true, 0});
  return MetadataTemplate::make(catalog).value();
}

TEST(MetadataTemplate, IsReadBackFromAMessage) {
  std::string message;
  small_template().append_to(message);
  manifest::CodedReader reader(message);
  const auto read = MetadataTemplate::read(reader);
  ASSERT_TRUE(read) << read.error().what();
  EXPECT_EQ(reader.left(), 0u);
  EXPECT_EQ(read->file_count(), 2u);
  const std::vector<std::string> files = {"a", "b"};
  EXPECT_EQ(read->render("id", "place", files), small_template().render("id", "place", files));
}

TEST(MetadataTemplate, RefusesAMessageCutAnywhere) {
  std::string message;
  small_template().append_to(message);
  for (std::size_t size = 0; size < message.size(); ++size) {
    manifest::CodedReader reader(std::string_view(message).substr(0, size));
    const auto read = MetadataTemplate::read(reader);
    ASSERT_FALSE(read) << size;
    EXPECT_EQ(read.error().code(), ErrorCode::kCorrupt);
  }
}

TEST(MetadataTemplate, RefusesMismatchedSlots) {
  const auto refusal = [](std::uint64_t files, std::uint64_t distance, char kind, std::uint64_t file) {
    std::string message;
    manifest::append_text(message, "opcodes");
    manifest::append_varint(message, files);
    manifest::append_varint(message, 1);
    manifest::append_varint(message, distance);
    message += kind;
    manifest::append_varint(message, file);
    message += std::string(3, '\0') + '\1';  // no compact catalog, of version 1
    manifest::CodedReader reader(message);
    const auto read = MetadataTemplate::read(reader);
    return read ? std::string() : read.error().message();
  };
  constexpr char kFileSlot = 2;
  EXPECT_EQ(refusal(1, 7, kFileSlot, 0), "");
  EXPECT_NE(refusal(8, 7, kFileSlot, 0), "") << "more files than bytes that could name them";
  EXPECT_NE(refusal(1, 8, kFileSlot, 0), "") << "behind the last opcode";
  EXPECT_NE(refusal(1, UINT64_MAX, kFileSlot, 0), "");
  EXPECT_NE(refusal(1, 7, kFileSlot + 1, 0), "") << "no kind has this number";
  EXPECT_NE(refusal(1, 7, kFileSlot, 1), "") << "the only file has number 0";
}

}  // namespace
}  // namespace cairn::dcp
