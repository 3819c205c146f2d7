#include "format/manifest/trailer.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>

#include "core/checksum.h"

namespace cairn::manifest {
namespace {

constexpr std::uint64_t kTrailerOffset = 1'000'000;

TrailerItem tensor_item(std::string fqn, std::uint64_t offset, Extents shape, Box box) {
  TrailerItem item;
  item.fqn = std::move(fqn);
  item.dtype = DType::kFloat64;
  item.requires_grad = true;
  item.global_shape = std::move(shape);
  item.box = std::move(box);
  const auto bytes = static_cast<std::uint64_t>(item.box.element_count()) * 8;
  item.range = {offset, bytes + 500, offset + 300, bytes};
  return item;
}

TrailerIndex example_index() {
  TrailerIndex index;
  index.save_id = {0x1122334455667788, 0x99AABBCCDDEEFF00};
  index.rank = 3;
  index.file_number = 1;
  index.file_count = 8;
  index.items.push_back(tensor_item("model.weight", 20, {100, 100}, Box::whole({100, 100}).value()));
  index.items.back().path = {"model", "weight"};
  index.items.push_back(tensor_item("m.3.x", 90'000, {100, 100}, Box::make({5, 0}, {7, 50}).value()));
  index.items.back().path = {"m", std::int64_t{3}, "x"};
  index.items.push_back(tensor_item("empty", 95'000, {0, 4}, Box::whole({0, 4}).value()));
  index.items.push_back(tensor_item("scalar", 96'000, {}, Box()));
  index.items.back().path = {"renamed", "scalar"};
  TrailerItem value;
  value.fqn = "lr";
  value.path = {"lr"};
  value.kind = TrailerItem::Kind::kValue;
  value.range = {100'000, 200'000, 100'000, 200'000};
  index.items.push_back(value);
  TrailerItem serialized = value;
  serialized.kind = TrailerItem::Kind::kSerializedTensor;
  serialized.dtype = DType::kQInt8;
  serialized.global_shape = {3};
  serialized.box = Box::whole({3}).value();
  serialized.range = {300'000, 5, 300'000, 5};
  index.items.push_back(serialized);
  return index;
}

// A whole file: zero bytes in place of the items, and the trailer.
std::string file_with(const TrailerLayout& layout) {
  std::string file(layout.file_bytes(), '\0');
  std::vector<std::uint32_t> checksums(layout.checksum_count());
  std::iota(checksums.begin(), checksums.end(), 1000u);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(file));
  layout.render(checksums, bytes.subspan(layout.trailer_offset()));
  return file;
}

Result<std::optional<Trailer>> read(const std::string& file) {
  return read_trailer(MemorySource(std::as_bytes(std::span(file))));
}

TEST(Trailer, IsReadBackAsWritten) {
  const TrailerIndex index = example_index();
  const TrailerLayout layout = TrailerLayout::make(index, kTrailerOffset).value();
  const std::string file = file_with(layout);
  const std::optional<Trailer> trailer = read(file).value();
  ASSERT_TRUE(trailer);
  EXPECT_EQ(trailer->save_id(), index.save_id);
  EXPECT_EQ(trailer->rank(), 3u);
  EXPECT_EQ(trailer->file_number(), 1u);
  EXPECT_EQ(trailer->file_count(), 8u);
  EXPECT_EQ(trailer->trailer_offset(), kTrailerOffset);
  ASSERT_EQ(trailer->item_count(), index.items.size());
  for (std::size_t i = 0; i < index.items.size(); ++i) {
    SCOPED_TRACE(i);
    const TrailerItem item = trailer->item(i);
    const TrailerItem& expected = index.items[i];
    EXPECT_EQ(item.fqn, expected.fqn);
    EXPECT_EQ(item.path, expected.path);
    EXPECT_EQ(item.kind, expected.kind);
    EXPECT_EQ(item.range, expected.range);
    EXPECT_EQ(trailer->item_at(expected.range.item_offset), i);
    if (item.kind == TrailerItem::Kind::kValue) continue;
    EXPECT_EQ(item.dtype, expected.dtype);
    EXPECT_EQ(item.requires_grad, expected.requires_grad);
    EXPECT_EQ(item.global_shape, expected.global_shape);
    EXPECT_EQ(item.box, expected.box);
  }
  EXPECT_EQ(trailer->item_at(21), std::nullopt);
  EXPECT_EQ(trailer->item_at(0), std::nullopt);
}

TEST(Trailer, CoversEveryPrecedingByteOnce) {
  const TrailerLayout layout = TrailerLayout::make(example_index(), kTrailerOffset).value();
  const std::optional<Trailer> trailer = read(file_with(layout)).value();
  ASSERT_TRUE(trailer);
  std::uint64_t place = 0;
  std::vector<int> used(trailer->checksums().size());
  for (std::size_t i = 0; i <= trailer->item_count(); ++i) {
    EXPECT_EQ(trailer->frame_begin(i), place);
    ++used[trailer->slots().frame(i)];
    place = trailer->frame_end(i);
    if (i == trailer->item_count()) break;
    EXPECT_EQ(trailer->range(i).payload_offset, place);
    EXPECT_EQ(trailer->block_checksums(i).size(), checksum_block_count(trailer->range(i).payload_length));
    for (std::size_t j = 0; j < trailer->block_checksums(i).size(); ++j) ++used[trailer->slots().first_block(i) + j];
    place += trailer->range(i).payload_length;
  }
  EXPECT_EQ(place, kTrailerOffset);
  EXPECT_EQ(used, std::vector<int>(used.size(), 1));
  EXPECT_EQ(trailer->block_checksums(0)[1], 1001u);
}

TEST(Trailer, EmptyFileHasOneFrame) {
  const TrailerLayout layout = TrailerLayout::make({}, 0).value();
  const std::optional<Trailer> trailer = read(file_with(layout)).value();
  ASSERT_TRUE(trailer);
  EXPECT_EQ(trailer->item_count(), 0u);
  EXPECT_EQ(trailer->checksums().size(), 1u);
}

TEST(Trailer, AnySingleChangeIsNoticed) {
  const TrailerLayout layout = TrailerLayout::make(example_index(), 300'005).value();
  const std::string good = file_with(layout);
  for (std::size_t i = layout.trailer_offset(); i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      const auto trailer = read(bad);
      const bool in_magic = i >= good.size() - 8;
      ASSERT_EQ(trailer.has_value(), in_magic) << "byte " << i << " bit " << bit;
      if (in_magic) {
        EXPECT_FALSE(*trailer);
      } else {
        EXPECT_EQ(trailer.error().code(), ErrorCode::kCorrupt);
      }
    }
  }
}

TEST(Trailer, IsAbsentFromOtherFiles) {
  EXPECT_FALSE(read("").value());
  EXPECT_FALSE(read(std::string(63, 'x')).value());
  EXPECT_FALSE(read(std::string(5000, 'x')).value());
}

TEST(Trailer, MustEndWhereTheFileDoes) {
  const TrailerLayout layout = TrailerLayout::make(example_index(), kTrailerOffset).value();
  const std::string file = file_with(layout);
  const auto shortened = read(file.substr(1));
  ASSERT_FALSE(shortened);
  EXPECT_EQ(shortened.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(read("x" + file).error().code(), ErrorCode::kCorrupt);
}

TEST(Trailer, FooterAloneIdentifiesTheSave) {
  const TrailerIndex index = example_index();
  const TrailerLayout layout = TrailerLayout::make(index, kTrailerOffset).value();
  const std::string file = file_with(layout);
  const auto footer = read_trailer_footer(MemorySource(std::as_bytes(std::span(file)))).value();
  ASSERT_TRUE(footer);
  EXPECT_EQ(footer->save_id, index.save_id);
  EXPECT_EQ(footer->rank, 3u);
  EXPECT_EQ(footer->checksum, read(file).value()->checksum());
}

TEST(Trailer, ChecksumDependsOnEveryPart) {
  TrailerLayout layout = TrailerLayout::make(example_index(), kTrailerOffset).value();
  std::vector<std::uint32_t> checksums(layout.checksum_count());
  std::vector<std::byte> out(layout.trailer_bytes());
  const std::uint32_t first = layout.render(checksums, out);
  checksums.back() = 1;
  EXPECT_NE(layout.render(checksums, out), first);
  checksums.back() = 0;
  EXPECT_EQ(layout.render(checksums, out), first);
  layout.set_save_id({1, 2});
  EXPECT_NE(layout.render(checksums, out), first);
  TrailerIndex renamed = example_index();
  renamed.items[2].fqn = "emptz";
  EXPECT_NE(TrailerLayout::make(renamed, kTrailerOffset).value().render(checksums, out), first);
}

TEST(TrailerLayout, RefusesContradictoryItems) {
  const auto code_of = [](auto change) {
    TrailerIndex index = example_index();
    change(index.items);
    const auto layout = TrailerLayout::make(index, kTrailerOffset);
    return layout ? std::optional<ErrorCode>() : layout.error().code();
  };
  using Items = std::vector<TrailerItem>;
  EXPECT_EQ(code_of([](Items&) {}), std::nullopt);
  EXPECT_EQ(code_of([](Items& items) { std::swap(items[0], items[1]); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([](Items& items) { items[0].range.item_length = 100'000; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([](Items& items) { items[0].range.payload_length -= 8; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([](Items& items) {
              items[1].box = Box::make({98, 0}, {7, 50}).value();
            }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([](Items& items) { items[4].range.payload_offset += 1; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([](Items& items) { items.back().range.item_offset = kTrailerOffset; }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([](Items& items) { items.back().range.item_offset = UINT64_MAX; }), ErrorCode::kInvalidArgument);
}

TEST(TrailerLayout, TakesTenThousandItems) {
  TrailerIndex index;
  std::uint64_t offset = 0;
  for (int i = 0; i < 10'000; ++i) {
    const Extents shape{32, 32};
    index.items.push_back(
        tensor_item("layers." + std::to_string(i) + ".weight", offset, shape, Box::whole(shape).value()));
    index.items.back().path = {"layers", std::int64_t{i}, "weight"};
    offset += index.items.back().range.item_length;
  }
  const TrailerLayout layout = TrailerLayout::make(index, offset).value();
  EXPECT_LT(layout.trailer_bytes(), 10'000u * 50);
  const std::optional<Trailer> trailer = read(file_with(layout)).value();
  ASSERT_TRUE(trailer);
  EXPECT_EQ(trailer->item(9'999).path, index.items[9'999].path);
  EXPECT_EQ(trailer->item_at(index.items[5'000].range.item_offset), 5'000u);
}

}  // namespace
}  // namespace cairn::manifest
