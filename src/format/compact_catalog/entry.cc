#include "format/compact_catalog/entry.h"

#include <limits>
#include <optional>
#include <utility>

#include "core/checked.h"

namespace cairn::compact_catalog {
namespace {

constexpr auto kPlaceMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

Error corrupt_entry(const char* what) { return Error(ErrorCode::kCorrupt, what); }

Result<ItemLocation> checked_location(std::int64_t file, std::int64_t offset, std::int64_t length,
                                      const EntryBounds& bounds) {
  const auto end = checked_add(static_cast<std::uint64_t>(offset), static_cast<std::uint64_t>(length));
  if (file < 0 || offset < 0 || length < 0 || !end || *end > kPlaceMax) {
    return corrupt_entry("an item whose place in its file cannot be");
  }
  // An item without bytes has no file.
  if (length != 0 && static_cast<std::uint64_t>(file) >= bounds.file_count) {
    return corrupt_entry("an item in a file that the commit record does not have");
  }
  if (static_cast<std::uint64_t>(file) > std::numeric_limits<std::uint32_t>::max()) {
    return corrupt_entry("a file number that cannot be");
  }
  return ItemLocation{static_cast<std::uint32_t>(file), static_cast<std::uint64_t>(offset),
                      static_cast<std::uint64_t>(length)};
}

}  // namespace

Result<ItemLocation> ChunkColumns::location(std::uint64_t index, const EntryBounds& bounds) const {
  return checked_location(places[0][index], places[1][index], places[2][index], bounds);
}

Result<ChunkColumns> read_columns(manifest::CodedReader& reader, std::size_t box_dimensions, std::uint64_t count,
                                  const ExpectedPlace& expected) {
  ChunkColumns columns;
  for (std::size_t i = 0; i < 2 * box_dimensions; ++i) {
    CAIRN_TRY_ASSIGN(RunColumn column, RunColumn::read(reader, count));
    columns.boxes.push_back(std::move(column));
  }
  for (const std::int64_t start : {expected.file, expected.end, expected.length}) {
    CAIRN_TRY_ASSIGN(RunColumn column, RunColumn::read(reader, count, start));
    columns.places.push_back(std::move(column));
  }
  return columns;
}

Result<const CatalogEntry*> BlockReader::next() {
  entry_ = CatalogEntry();
  CAIRN_TRY(read_name());
  CAIRN_TRY_ASSIGN(const std::uint8_t bits, reader_.byte());
  constexpr unsigned kKnownBits = kTensorBit | kGradientBit | kFormMask << kFormShift | kGroupsBit | kStridesBit;
  if ((bits & ~kKnownBits) != 0) return reader_.damaged("an entry of an unknown kind");
  entry_.is_tensor = (bits & kTensorBit) != 0;
  if (entry_.is_tensor) {
    CAIRN_TRY(read_tensor(bits));
  } else {
    if (bits != 0) return reader_.damaged("a value with the bits of a tensor");
    CAIRN_TRY(read_location());
  }
  entry_.fqn = fqn_;
  return &entry_;
}

Result<void> BlockReader::read_name() {
  CAIRN_TRY_ASSIGN(const std::uint64_t shared, reader_.varint());
  if (shared > fqn_.size()) return reader_.damaged("a name that shares more than the name before has");
  CAIRN_TRY_ASSIGN(const std::string_view rest, reader_.counted_text());
  fqn_.resize(shared);
  fqn_ += rest;
  return names_.charge(fqn_.size());
}

// The numbers are differences from the item before.
Result<void> BlockReader::read_location() {
  CAIRN_TRY_ASSIGN(const std::int64_t file, read_signed(reader_));
  CAIRN_TRY_ASSIGN(const std::int64_t offset, read_signed(reader_));
  CAIRN_TRY_ASSIGN(const std::int64_t length, read_signed(reader_));
  const std::optional<std::int64_t> sums[] = {checked_add(expected_.file, file), checked_add(expected_.end, offset),
                                              checked_add(expected_.length, length)};
  if (!sums[0] || !sums[1] || !sums[2]) return reader_.damaged("an item whose place in its file cannot be");
  CAIRN_TRY_ASSIGN(entry_.location, checked_location(*sums[0], *sums[1], *sums[2], bounds_));
  expected_ = {*sums[0], *sums[1] + *sums[2], *sums[2]};
  return {};
}

Result<void> BlockReader::read_tensor(std::uint8_t bits) {
  entry_.requires_grad = (bits & kGradientBit) != 0;
  const unsigned form = bits >> kFormShift & kFormMask;
  if (form > static_cast<unsigned>(ChunkForm::kBoxes)) return reader_.damaged("chunks of an unknown form");
  entry_.form = static_cast<ChunkForm>(form);
  CAIRN_TRY_ASSIGN(const std::uint8_t code, reader_.byte());
  const std::optional<DType> dtype = dtype_from_code(code);
  if (!dtype) return reader_.damaged("a dtype that cannot be");
  entry_.dtype = *dtype;
  CAIRN_TRY_ASSIGN(const std::uint64_t dimensions, reader_.varint());
  if (dimensions > kDimensionsMax) return reader_.damaged("too many dimensions");
  entry_.shape = Extents(dimensions, 0);
  for (std::size_t d = 0; d < dimensions; ++d) {
    CAIRN_TRY_ASSIGN(const std::uint64_t size, reader_.varint());
    if (size > kPlaceMax) return reader_.damaged("a size that cannot be");
    entry_.shape[d] = static_cast<std::int64_t>(size);
  }
  if (!element_count(entry_.shape)) return reader_.damaged("a tensor of a size that cannot be");
  if ((bits & kStridesBit) != 0) CAIRN_TRY(read_strides());
  const bool in_groups = (bits & kGroupsBit) != 0;
  if (entry_.form == ChunkForm::kWhole) {
    if (in_groups) return reader_.damaged("a single chunk in groups");
    return read_location();
  }
  if (entry_.form == ChunkForm::kGrid) {
    CAIRN_TRY(read_grid());
  } else {
    CAIRN_TRY_ASSIGN(entry_.chunk_count, reader_.varint());
  }
  if (entry_.chunk_count > bounds_.chunk_count) return reader_.damaged("more chunks than the pickle has bytes for");
  if (in_groups) return read_groups();
  const std::size_t box_dimensions = entry_.form == ChunkForm::kBoxes ? dimensions : 0;
  CAIRN_TRY_ASSIGN(entry_.columns, read_columns(reader_, box_dimensions, entry_.chunk_count, expected_));
  if (entry_.chunk_count == 0) return {};
  CAIRN_TRY_ASSIGN(const ItemLocation first, entry_.columns.location(0, bounds_));
  expected_ = {first.file, static_cast<std::int64_t>(first.offset + first.length),
               static_cast<std::int64_t>(first.length)};
  return {};
}

Result<void> BlockReader::read_strides() {
  CAIRN_TRY_ASSIGN(const std::uint64_t count, reader_.varint());
  if (count == 0) {
    entry_.strides = std::make_shared<const Extents>(row_major_strides(entry_.shape));
    return {};
  }
  if (count - 1 > kDimensionsMax) return reader_.damaged("too many strides");
  Extents strides(count - 1, 0);
  for (std::int64_t& stride : std::span(strides.data(), strides.size())) {
    CAIRN_TRY_ASSIGN(const std::uint64_t number, reader_.varint());
    if (number > kPlaceMax) return reader_.damaged("a stride that cannot be");
    stride = static_cast<std::int64_t>(number);
  }
  entry_.strides = std::make_shared<const Extents>(std::move(strides));
  return {};
}

// Every cell of a dimension has elements, or the dimension has a single cell without elements.
Result<void> BlockReader::read_grid() {
  for (std::size_t d = 0; d < entry_.shape.size(); ++d) {
    CAIRN_TRY_ASSIGN(const std::uint64_t cells, reader_.varint());
    if (cells == 0 || cells > bounds_.chunk_count) return reader_.damaged("a grid of a size that cannot be");
    CAIRN_TRY_ASSIGN(RunColumn sizes, RunColumn::read(reader_, cells));
    CAIRN_TRY_ASSIGN(const std::int64_t sum, sizes.sum());
    if (sum != entry_.shape[d] || (cells > 1 && sizes.smallest() == 0)) {
      return reader_.damaged("a grid that does not fill its tensor");
    }
    const std::optional<std::uint64_t> count = checked_multiply(entry_.chunk_count, cells);
    if (!count || *count > bounds_.chunk_count) return reader_.damaged("more chunks than the pickle has bytes for");
    entry_.chunk_count = *count;
    entry_.cuts.push_back(std::move(sizes));
  }
  return {};
}

Result<void> BlockReader::read_groups() {
  CAIRN_TRY_ASSIGN(std::uint64_t offset, reader_.varint());
  const std::uint64_t count = entry_.chunk_count / kGroupChunks + (entry_.chunk_count % kGroupChunks != 0 ? 1 : 0);
  for (std::uint64_t i = 0; i < count; ++i) {
    ChunkGroup& group = entry_.groups.emplace_back();
    group.offset = offset;
    CAIRN_TRY_ASSIGN(group.length, reader_.varint());
    CAIRN_TRY_ASSIGN(group.checksum, reader_.fixed<std::uint32_t>());
    const std::optional<std::uint64_t> end = checked_add(offset, group.length);
    if (!end) return reader_.damaged("a group of a length that cannot be");
    offset = *end;
  }
  if (entry_.form == ChunkForm::kGrid) return {};
  for (std::size_t i = 0; i < 2 * entry_.shape.size(); ++i) {
    CAIRN_TRY_ASSIGN(RunColumn column, RunColumn::read(reader_, count));
    entry_.group_boxes.push_back(std::move(column));
  }
  return {};
}

}  // namespace cairn::compact_catalog
