// The compact catalog: a second form of the metadata, behind the pickle of `.metadata`.
//
// The pickle of 16.4 million chunks takes seconds and gigabytes to decode, on every rank, although a rank needs its own
// chunks only. The compact catalog has the same content in a form with an index:
//
//   footer  blocks and groups  pages  directory  footer
//
// - A block holds the entries of some hundred keys that are neighbours in the metadata. A key's name is coded by its
//   difference from the name before. An entry has dtype, shape, and the boxes and places of the chunks.
// - Chunks are sorted by box. If the sorted boxes are all cells of a grid, only the cuts of each dimension are stored,
//   and a reader computes the numbers of the cells that it needs. Other boxes are columns of numbers. The chunks'
//   places are columns too. A column is coded as runs of equal differences (run_column.h): 16,384 equal chunks of
//   16,384 ranks take some ten bytes.
// - Chunks whose columns take more than kInlineBytesMax are cut into groups. A group lies outside the block, with a
//   checksum of its own, and the entry has the box around each group: a reader decodes the groups that overlap its own
//   boxes.
// - A page lists, for a range of hash values, the blocks of the keys whose names have these hashes. The keys need no
//   sorting: neighbours in the metadata are neighbours on a rank, and 16 million texts take long to sort.
// - The directory lists the blocks and the pages, each with its checksum. The footer has the checksum of the directory,
//   and length and checksum of the pickle.
//
// A rank thus reads the footer, the directory (below a megabyte for 16.4 million keys), a page for the first of its
// keys, and the blocks of its keys. Files are named by their place in the commit record. The body between the footers
// depends on neither the names of files nor the save, and is made once for all saves of one structure.
//
// The pickle stays the checkpoint's metadata: a reader that does not know this catalog never looks at it, and a reader
// that finds it damaged reads the pickle. `verify` compares the two.
#include "format/compact_catalog/writer.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "core/checked.h"
#include "core/checksum.h"
#include "core/little_endian.h"
#include "format/compact_catalog/coding.h"
#include "format/compact_catalog/footer.h"
#include "format/compact_catalog/run_column.h"
#include "format/manifest/varint.h"

namespace cairn::compact_catalog {
namespace {

using manifest::append_varint;

// A generous estimate of the bytes of a key: memory that is reserved but never written costs nothing.
constexpr std::size_t kBytesPerKey = 96;

std::uint32_t checksum_of(std::string_view bytes) { return crc32(std::as_bytes(std::span(bytes))); }

void append_checksum(std::string& out, std::string_view bytes) {
  std::byte fixed[sizeof(std::uint32_t)];
  store_little_endian(fixed, checksum_of(bytes));
  out.append(reinterpret_cast<const char*>(fixed), sizeof fixed);
}

std::string footer_of(const PickleIdentity& pickle, const CatalogBody& body) {
  Footer footer;
  footer.version = body.version;
  footer.pickle_bytes = pickle.bytes;
  footer.pickle_checksum = pickle.checksum;
  footer.directory_checksum =
      checksum_of(std::string_view(body.bytes).substr(body.bytes.size() - body.directory_bytes));
  footer.catalog_bytes = catalog_bytes(body);
  footer.directory_bytes = body.directory_bytes;
  footer.key_count = body.key_count;
  footer.file_count = body.file_count;
  std::string bytes;
  append_footer(bytes, footer);
  return bytes;
}

bool is_whole(const CatalogTensor& tensor) {
  if (tensor.chunk_count() != 1) return false;
  const std::size_t dimensions = tensor.shape.size();
  for (std::size_t d = 0; d < dimensions; ++d) {
    if (tensor.boxes[d] != 0 || tensor.boxes[dimensions + d] != tensor.shape[d]) return false;
  }
  return true;
}

}  // namespace

std::uint32_t hash_of_name(std::string_view fqn) { return checksum_of(fqn); }

CompactCatalogWriter::CompactCatalogWriter() { block_.reserve(2 * kBlockBytes); }

void CompactCatalogWriter::begin_key(std::string_view fqn) {
  const auto differs = std::mismatch(fqn.begin(), fqn.end(), last_fqn_.begin(), last_fqn_.end());
  const auto shared = static_cast<std::size_t>(differs.first - fqn.begin());
  append_varint(block_, shared);
  manifest::append_text(block_, fqn.substr(shared));
  last_fqn_.resize(shared);
  last_fqn_ += fqn.substr(shared);
  hashes_.push_back(std::uint64_t{hash_of_name(fqn)} << 32 | static_cast<std::uint32_t>(blocks_.size()));
}

void CompactCatalogWriter::end_key() {
  if (block_.size() >= kBlockBytes) end_block();
}

void CompactCatalogWriter::end_block() {
  if (block_.empty()) return;
  blocks_.push_back({kFooterBytes + out_.size(), block_.size(), checksum_of(block_)});
  fits_ = fits_ && blocks_.size() <= std::numeric_limits<std::uint32_t>::max();
  out_ += block_;
  block_.clear();
  last_fqn_.clear();
  last_file_ = last_end_ = last_length_ = 0;
}

// Whether the format can hold the location.
bool CompactCatalogWriter::take_location(const ItemLocation& location) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  ++item_count_;
  const std::optional<std::uint64_t> end = checked_add(location.offset, location.length);
  fits_ = fits_ && end && *end <= kMax;
  return fits_;
}

void CompactCatalogWriter::note_location(const ItemLocation& location) {
  last_file_ = location.file;
  last_end_ = static_cast<std::int64_t>(location.offset + location.length);
  last_length_ = static_cast<std::int64_t>(location.length);
}

void CompactCatalogWriter::add(const CatalogValue& value) {
  if (!take_location(value.location)) return;
  begin_key(value.fqn);
  block_.push_back(0);
  append_signed(block_, static_cast<std::int64_t>(value.location.file) - last_file_);
  append_signed(block_, static_cast<std::int64_t>(value.location.offset) - last_end_);
  append_signed(block_, static_cast<std::int64_t>(value.location.length) - last_length_);
  note_location(value.location);
  end_key();
}

void CompactCatalogWriter::add(const CatalogTensor& tensor) {
  for (const ItemLocation& location : tensor.locations) {
    if (!take_location(location)) return;
  }
  begin_key(tensor.fqn);
  const std::size_t dimensions = tensor.shape.size();
  const std::size_t count = tensor.chunk_count();
  ChunkForm form = ChunkForm::kWhole;
  bool in_groups = false;
  if (!is_whole(tensor)) {
    sort_chunks(tensor);
    form = cut_into_grid(tensor) ? ChunkForm::kGrid : ChunkForm::kBoxes;
    fill_columns(tensor, form == ChunkForm::kBoxes);
    coded_.clear();
    append_columns(coded_, 0, count, true);
    in_groups = coded_.size() > kInlineBytesMax && count > kGroupChunks;
  }
  block_.push_back(static_cast<char>(kTensorBit | (tensor.requires_grad ? kGradientBit : 0) |
                                     static_cast<std::uint8_t>(form) << kFormShift | (in_groups ? kGroupsBit : 0) |
                                     (tensor.strides ? kStridesBit : 0)));
  block_.push_back(static_cast<char>(tensor.dtype));
  append_varint(block_, dimensions);
  for (const std::int64_t size : tensor.shape) append_varint(block_, static_cast<std::uint64_t>(size));
  if (tensor.strides) append_strides(*tensor.strides, tensor.shape);
  if (form == ChunkForm::kWhole) {
    const ItemLocation& location = tensor.locations.front();
    append_signed(block_, static_cast<std::int64_t>(location.file) - last_file_);
    append_signed(block_, static_cast<std::int64_t>(location.offset) - last_end_);
    append_signed(block_, static_cast<std::int64_t>(location.length) - last_length_);
    note_location(location);
    return end_key();
  }
  if (form == ChunkForm::kGrid) {
    for (const std::vector<std::int64_t>& sizes : cuts_) {
      append_varint(block_, sizes.size());
      RunColumn::append(block_, sizes);
    }
  } else {
    append_varint(block_, count);
  }
  if (in_groups) {
    append_groups(count, form == ChunkForm::kBoxes ? dimensions : 0);
  } else {
    block_ += coded_;
    if (count > 0) note_location(tensor.locations[order_.front()]);
  }
  end_key();
}

// A 0 stands for the row-major strides of the whole tensor.
void CompactCatalogWriter::append_strides(const Extents& strides, const Extents& shape) {
  has_strides_ = true;
  if (strides == row_major_strides(shape)) return append_varint(block_, 0);
  append_varint(block_, strides.size() + 1);
  for (const std::int64_t stride : strides) append_varint(block_, static_cast<std::uint64_t>(stride));
}

// Fills order_. Chunks with equal boxes stay in the order of the metadata.
void CompactCatalogWriter::sort_chunks(const CatalogTensor& tensor) {
  const std::size_t width = 2 * tensor.shape.size();
  const std::int64_t* boxes = tensor.boxes.data();
  order_.resize(tensor.chunk_count());
  std::iota(order_.begin(), order_.end(), 0U);
  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    const std::int64_t* box_a = boxes + a * width;
    const std::int64_t* box_b = boxes + b * width;
    return std::lexicographical_compare(box_a, box_a + width, box_b, box_b + width);
  };
  if (!std::is_sorted(order_.begin(), order_.end(), before)) std::stable_sort(order_.begin(), order_.end(), before);
}

// Whether the sorted chunks are all cells of a grid over the whole tensor. Fills cuts_.
bool CompactCatalogWriter::cut_into_grid(const CatalogTensor& tensor) {
  const std::size_t dimensions = tensor.shape.size();
  const auto offset = [&](std::size_t i, std::size_t d) { return tensor.boxes[order_[i] * 2 * dimensions + d]; };
  const auto size = [&](std::size_t i, std::size_t d) { return tensor.boxes[(order_[i] * 2 + 1) * dimensions + d]; };
  cuts_.resize(dimensions);
  std::size_t cells = 1;  // of the dimensions handled so far, the last of the tensor first
  for (std::size_t d = dimensions; d-- > 0;) {
    cuts_[d].clear();
    std::int64_t end = 0;
    for (std::size_t i = 0; i < order_.size() && offset(i, d) == end; i += cells) {
      if (!cuts_[d].empty() && size(i, d) == 0) break;
      cuts_[d].push_back(size(i, d));
      end += size(i, d);
    }
    if (end != tensor.shape[d] || cuts_[d].empty()) return false;
    // A cell without elements is alone in its dimension: an offset then tells the cell.
    if (cuts_[d].front() == 0 && cuts_[d].size() > 1) return false;
    cells *= cuts_[d].size();
  }
  if (cells != order_.size()) return false;
  std::vector<std::size_t> cell(dimensions);
  std::vector<std::int64_t> begin(dimensions);
  for (std::size_t i = 0; i < order_.size(); ++i) {
    for (std::size_t d = 0; d < dimensions; ++d) {
      if (offset(i, d) != begin[d] || size(i, d) != cuts_[d][cell[d]]) return false;
    }
    for (std::size_t d = dimensions; d-- > 0;) {
      begin[d] += cuts_[d][cell[d]];
      if (++cell[d] < cuts_[d].size()) break;
      cell[d] = 0;
      begin[d] = 0;
    }
  }
  return true;
}

void CompactCatalogWriter::fill_columns(const CatalogTensor& tensor, bool with_boxes) {
  const std::size_t width = with_boxes ? 2 * tensor.shape.size() : 0;
  columns_.resize(width + kPlaceColumns);
  for (std::vector<std::int64_t>& column : columns_) column.clear();
  for (const std::uint32_t chunk : order_) {
    for (std::size_t i = 0; i < width; ++i) columns_[i].push_back(tensor.boxes[chunk * width + i]);
    const ItemLocation& location = tensor.locations[chunk];
    columns_[width].push_back(location.file);
    columns_[width + 1].push_back(static_cast<std::int64_t>(location.offset));
    columns_[width + 2].push_back(static_cast<std::int64_t>(location.length));
  }
}

// Appends the chunks from `begin` to `end`. `continues`: the places are coded as differences from the key before.
void CompactCatalogWriter::append_columns(std::string& out, std::size_t begin, std::size_t end, bool continues) const {
  const std::int64_t expected[kPlaceColumns] = {last_file_, last_end_, last_length_};
  const std::size_t width = columns_.size() - kPlaceColumns;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    RunColumn::append(out, std::span(columns_[i]).subspan(begin, end - begin),
                      continues && i >= width ? expected[i - width] : 0);
  }
}

// Writes the groups, and appends their list to the block. `dimensions`: 0 for the groups of a grid, which need no
// boxes.
void CompactCatalogWriter::append_groups(std::size_t count, std::size_t dimensions) {
  append_varint(block_, kFooterBytes + out_.size());
  Columns around(2 * dimensions);
  for (std::size_t begin = 0; begin < count; begin += kGroupChunks) {
    const std::size_t end = std::min(count, begin + kGroupChunks);
    coded_.clear();
    append_columns(coded_, begin, end, false);
    append_varint(block_, coded_.size());
    append_checksum(block_, coded_);
    out_ += coded_;
    for (std::size_t d = 0; d < dimensions; ++d) {
      std::int64_t low = std::numeric_limits<std::int64_t>::max();
      std::int64_t high = 0;
      for (std::size_t i = begin; i < end; ++i) {
        low = std::min(low, columns_[d][i]);
        high = std::max(high, columns_[d][i] + columns_[dimensions + d][i]);
      }
      around[d].push_back(low);
      around[dimensions + d].push_back(high);
    }
  }
  for (const std::vector<std::int64_t>& column : around) RunColumn::append(block_, column);
}

// Returns the pages, and appends their list to `directory`.
std::string CompactCatalogWriter::take_pages(std::string& directory) {
  unsigned bits = 0;
  while (bits < kPageBitsMax && hashes_.size() >> bits > kPageKeys) ++bits;
  const auto page_of = [bits](std::uint64_t hash) {
    return bits == 0 ? 0 : static_cast<std::size_t>(hash >> (64 - bits));
  };
  // The hashes sorted by page, then sorted within their page: faster than sorting all.
  std::vector<std::size_t> begins((std::size_t{1} << bits) + 1);
  for (const std::uint64_t hash : hashes_) ++begins[page_of(hash) + 1];
  for (std::size_t page = 1; page < begins.size(); ++page) begins[page] += begins[page - 1];
  std::vector<std::uint64_t> sorted(hashes_.size());
  {
    std::vector<std::size_t> next = begins;
    for (const std::uint64_t hash : hashes_) sorted[next[page_of(hash)]++] = hash;
  }
  hashes_ = {};
  std::string pages;
  pages.reserve(sorted.size() * 6);
  append_varint(directory, bits);
  append_varint(directory, kFooterBytes + out_.size());
  for (std::size_t page = 0; page + 1 < begins.size(); ++page) {
    const auto from = sorted.begin() + static_cast<std::ptrdiff_t>(begins[page]);
    const auto to = sorted.begin() + static_cast<std::ptrdiff_t>(begins[page + 1]);
    std::sort(from, to);
    const std::size_t begin = pages.size();
    std::uint64_t last = bits == 0 ? 0 : std::uint64_t{page} << (32 - bits);
    for (auto it = from; it != to; ++it) {
      append_varint(pages, (*it >> 32) - last);
      append_varint(pages, *it & std::numeric_limits<std::uint32_t>::max());
      last = *it >> 32;
    }
    append_varint(directory, pages.size() - begin);
    append_checksum(directory, std::string_view(pages).substr(begin));
  }
  return pages;
}

CatalogBody CompactCatalogWriter::finish(std::uint32_t file_count, std::uint64_t items_min) && {
  if (!fits_ || item_count_ < items_min) return {};
  end_block();
  CatalogBody body;
  body.key_count = hashes_.size();
  body.file_count = file_count;
  body.version = has_strides_ ? kVersionWithStrides : kVersionWithoutStrides;
  std::string directory;
  append_varint(directory, blocks_.size());
  std::uint64_t end = kFooterBytes;
  for (const Block& block : blocks_) {
    append_varint(directory, block.offset - end);
    append_varint(directory, block.length);
    std::byte fixed[sizeof block.checksum];
    store_little_endian(fixed, block.checksum);
    directory.append(reinterpret_cast<const char*>(fixed), sizeof fixed);
    end = block.offset + block.length;
  }
  const std::string pages = take_pages(directory);
  out_ += pages;
  out_ += directory;
  body.directory_bytes = directory.size();
  body.bytes = std::move(out_);
  return body;
}

CatalogBody compact(const Catalog& catalog, std::uint64_t items_min) {
  std::uint64_t items = catalog.values.size();
  for (const CatalogTensor& tensor : catalog.tensors) items += tensor.chunk_count();
  // The engine can't read transformed items: a load must see the transforms.
  const bool has_room = catalog.files.size() <= std::numeric_limits<std::uint32_t>::max();
  if (items < items_min || !catalog.transforms.empty() || !has_room) return {};
  CompactCatalogWriter writer;
  writer.reserve(catalog.keys.size() * kBytesPerKey);
  for (const Catalog::KeyRef& key : catalog.keys) {
    if (key.is_tensor) {
      writer.add(catalog.tensors[key.index]);
    } else {
      writer.add(catalog.values[key.index]);
    }
  }
  return std::move(writer).finish(static_cast<std::uint32_t>(catalog.files.size()), items_min);
}

void append_catalog(std::string& pickle, const CatalogBody& body) {
  if (body.bytes.empty()) return;
  const std::string footer = footer_of({pickle.size(), checksum_of(pickle)}, body);
  pickle += footer;
  pickle += body.bytes;
  pickle += footer;
}

bool is_catalog_of(std::string_view bytes, const PickleIdentity& pickle, const CatalogBody& body) {
  if (bytes.size() != catalog_bytes(body)) return false;
  if (bytes.empty()) return true;
  const std::string footer = footer_of(pickle, body);
  return bytes.starts_with(footer) && bytes.ends_with(footer) &&
         bytes.substr(footer.size(), body.bytes.size()) == body.bytes;
}

std::uint64_t catalog_bytes(const CatalogBody& body) {
  return body.bytes.empty() ? 0 : body.bytes.size() + 2 * kFooterBytes;
}

}  // namespace cairn::compact_catalog
