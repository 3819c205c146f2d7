#include "format/compact_catalog/reader.h"

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/checked.h"
#include "core/checksum.h"
#include "core/seeded_hash.h"
#include "format/compact_catalog/chunk_grid.h"
#include "format/compact_catalog/coding.h"
#include "format/compact_catalog/writer.h"
#include "format/manifest/varint.h"

namespace cairn::compact_catalog {
namespace {

// Names with equal hashes are rare: in a catalog with more than so many, a look-up could walk through all keys.
constexpr std::size_t kCandidatesMax = 64;
constexpr std::uint64_t kHashCount = std::uint64_t{1} << 32;

Error corrupt_catalog(std::string message) { return Error(ErrorCode::kCorrupt, std::move(message)); }

// A growing vector holds its old and new memory for a moment, and spare capacity afterwards.
constexpr std::uint64_t kVectorGrowth = 3;
// The charge for the number of a chunk, and for a chunk in a catalog.
constexpr std::uint64_t kChunkNumberBytes = kVectorGrowth * sizeof(std::uint64_t);
std::uint64_t chunk_bytes(std::size_t dimensions) {
  return kVectorGrowth * (sizeof(ItemLocation) + 2 * sizeof(std::int64_t) * dimensions);
}

}  // namespace

Result<std::optional<CompactCatalog>> CompactCatalog::open(const ByteSource& file, std::uint64_t front_bytes,
                                                           std::size_t file_count) {
  if (front_bytes > file.size()) return corrupt_catalog("a commit record with more bytes than the file");
  if (front_bytes < 2 * kFooterBytes) return std::optional<CompactCatalog>();
  std::byte bytes[kFooterBytes];
  const std::uint64_t offset = front_bytes - kFooterBytes;
  CAIRN_TRY(file.read_at(offset, bytes));
  CAIRN_TRY_ASSIGN(const std::optional<Footer> footer, read_footer(bytes, offset));
  if (!footer) return std::optional<CompactCatalog>();
  const bool fills_front = checked_add(footer->pickle_bytes, footer->catalog_bytes) == front_bytes;
  if (!fills_front || footer->catalog_bytes < 2 * kFooterBytes ||
      footer->directory_bytes > footer->catalog_bytes - 2 * kFooterBytes) {
    return corrupt_catalog("the sizes of pickle and compact catalog contradict the commit record").offset(offset);
  }
  if (footer->file_count != file_count) {
    return corrupt_catalog("the compact catalog has another number of files than the commit record")
        .offset(offset)
        .expected(std::to_string(file_count))
        .actual(std::to_string(footer->file_count));
  }
  CompactCatalog catalog(file, *footer);
  CAIRN_TRY(catalog.read_directory());
  return std::optional(std::move(catalog));
}

// The part after `end`, which moves to the part's end.
Result<CompactCatalog::Part> CompactCatalog::read_part(manifest::CodedReader& reader, std::uint64_t& end) const {
  Part part;
  part.offset = end;
  CAIRN_TRY_ASSIGN(part.length, reader.varint());
  CAIRN_TRY_ASSIGN(part.checksum, reader.fixed<std::uint32_t>());
  const std::optional<std::uint64_t> after = checked_add(part.offset, part.length);
  if (!after || *after > footer_.catalog_bytes) return reader.damaged("a part outside the compact catalog");
  end = *after;
  return part;
}

Result<void> CompactCatalog::read_directory() {
  const std::uint64_t offset = footer_.catalog_bytes - kFooterBytes - footer_.directory_bytes;
  const Part directory{offset, footer_.directory_bytes, footer_.directory_checksum};
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> bytes, bytes_of(directory, "directory"));
  manifest::CodedReader reader(bytes, footer_.pickle_bytes + offset);
  CAIRN_TRY_ASSIGN(const std::uint64_t block_count, reader.count());
  blocks_.reserve(block_count);
  std::uint64_t end = kFooterBytes;
  for (std::uint64_t i = 0; i < block_count; ++i) {
    CAIRN_TRY_ASSIGN(const std::uint64_t gap, reader.varint());
    const std::optional<std::uint64_t> begin = checked_add(end, gap);
    if (!begin) return reader.damaged("a block outside the compact catalog");
    end = *begin;
    CAIRN_TRY_ASSIGN(const Part block, read_part(reader, end));
    blocks_.push_back(block);
  }
  CAIRN_TRY_ASSIGN(const std::uint64_t bits, reader.varint());
  if (bits > kPageBitsMax) return reader.damaged("too many pages");
  page_bits_ = static_cast<unsigned>(bits);
  CAIRN_TRY_ASSIGN(end, reader.varint());
  const std::uint64_t page_count = std::uint64_t{1} << page_bits_;
  if (page_count > reader.left()) return reader.damaged("more pages than bytes");
  pages_.reserve(page_count);
  for (std::uint64_t i = 0; i < page_count; ++i) {
    CAIRN_TRY_ASSIGN(const Part page, read_part(reader, end));
    pages_.push_back(page);
  }
  if (reader.left() != 0) return reader.damaged("bytes left over in the directory");
  return {};
}

Result<std::vector<std::byte>> CompactCatalog::bytes_of(const Part& part, const char* what) const {
  if (!range_within(part.offset, part.length, footer_.catalog_bytes)) {
    return corrupt_catalog(std::string("a ") + what + " outside the compact catalog");
  }
  const std::uint64_t offset = footer_.pickle_bytes + part.offset;
  std::vector<std::byte> bytes(part.length);
  CAIRN_TRY(file_->read_at(offset, bytes));
  const std::uint32_t actual = crc32(bytes);
  if (actual == part.checksum) return bytes;
  return corrupt_catalog(std::string("a ") + what + " of the compact catalog is damaged")
      .offset(offset)
      .expected(crc_text(part.checksum))
      .actual(crc_text(actual));
}

// The blocks that may hold names with this hash.
Result<std::vector<std::uint32_t>> CompactCatalog::blocks_with(std::uint32_t hash) const {
  const std::size_t number = page_bits_ == 0 ? 0 : hash >> (32 - page_bits_);
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> page, bytes_of(pages_[number], "page"));
  manifest::CodedReader reader(page, footer_.pickle_bytes + pages_[number].offset);
  std::vector<std::uint32_t> blocks;
  std::uint64_t value = page_bits_ == 0 ? 0 : std::uint64_t{number} << (32 - page_bits_);
  while (reader.left() != 0 && value <= hash) {
    CAIRN_TRY_ASSIGN(const std::uint64_t difference, reader.varint());
    CAIRN_TRY_ASSIGN(const std::uint64_t block, reader.varint());
    if (difference >= kHashCount || block >= blocks_.size()) return reader.damaged("a hash or block that cannot be");
    value += difference;
    if (value != hash) continue;
    if (blocks.size() == kCandidatesMax) return reader.damaged("very many keys with one hash");
    if (blocks.empty() || blocks.back() != block) blocks.push_back(static_cast<std::uint32_t>(block));
  }
  return blocks;
}

// A search for the keys of one call.
class CompactCatalog::Search {
 public:
  Search(const CompactCatalog& catalog, std::span<const WantedKey> wanted)
      : catalog_(catalog),
        budget_(catalog.footer_.pickle_bytes),
        is_single_(wanted.size() == 1),
        is_read_(catalog.blocks_.size()) {
    missing_.reserve(wanted.size());
    for (const WantedKey& key : wanted) missing_.emplace(key.fqn, &key);
  }

  // A block is read once: neighbours of a wanted key are mostly wanted too.
  Result<Catalog> run(std::span<const WantedKey> wanted) {
    for (const WantedKey& key : wanted) {
      if (!missing_.contains(key.fqn)) continue;
      CAIRN_TRY_ASSIGN(const std::vector<std::uint32_t> blocks, catalog_.blocks_with(hash_of_name(key.fqn)));
      for (const std::uint32_t block : blocks) CAIRN_TRY(read_block(block));
    }
    CAIRN_TRY(found_.index());
    return std::move(found_);
  }

 private:
  Result<void> read_block(std::uint32_t number) {
    if (is_read_[number]) return {};
    is_read_[number] = true;
    if (is_single_) {
      CAIRN_TRY_ASSIGN(const std::shared_ptr<const DecodedBlock> block, catalog_.decoded_block(number));
      for (const CatalogEntry& entry : block->entries) CAIRN_TRY(consider(entry));
      return {};
    }
    return catalog_.for_each_in_block(number, [this](const CatalogEntry& entry) { return consider(entry); });
  }

  Result<void> consider(const CatalogEntry& entry) {
    if (is_single_ && missing_.empty()) return {};
    const auto wanted = missing_.find(entry.fqn);
    if (wanted == missing_.end()) return {};
    Result<void> taken = take(entry, *wanted->second);
    if (!taken) return std::move(taken).error().key(entry.fqn);
    missing_.erase(wanted);
    return {};
  }

  Result<void> take(const CatalogEntry& entry, const WantedKey& wanted) {
    if (!entry.is_tensor) {
      found_.keys.push_back({false, static_cast<std::uint32_t>(found_.values.size())});
      found_.values.push_back({std::string(entry.fqn), entry.location});
      return {};
    }
    CAIRN_TRY_ASSIGN(CatalogTensor tensor, catalog_.expand(entry, wanted, budget_));
    found_.keys.push_back({true, static_cast<std::uint32_t>(found_.tensors.size())});
    found_.tensors.push_back(std::move(tensor));
    return {};
  }

  const CompactCatalog& catalog_;
  Catalog found_;
  std::unordered_map<std::string_view, const WantedKey*, SeededHash> missing_;
  ByteBudget budget_;  // in proportion to the pickle, which has each chunk by itself
  bool is_single_;
  std::vector<bool> is_read_;
};

Result<std::shared_ptr<const CompactCatalog::DecodedBlock>> CompactCatalog::decoded_block(std::uint32_t number) const {
  {
    const std::lock_guard lock(last_block_->mutex);
    if (last_block_->block && last_block_->block->number == number) return last_block_->block;
  }
  auto block = std::make_shared<DecodedBlock>();
  block->number = number;
  CAIRN_TRY(for_each_in_block(number, [&block](const CatalogEntry& entry) -> Result<void> {
    block->entries.push_back(entry);
    block->entries.back().fqn = block->names.emplace_back(entry.fqn);
    return {};
  }));
  const std::lock_guard lock(last_block_->mutex);
  last_block_->block = block;
  return std::shared_ptr<const DecodedBlock>(std::move(block));
}

Result<Catalog> CompactCatalog::find(std::span<const WantedKey> wanted) const {
  return Search(*this, wanted).run(wanted);
}

Result<CatalogTensor> CompactCatalog::expand(const CatalogEntry& entry, const WantedKey& wanted,
                                             ByteBudget& budget) const {
  CatalogTensor tensor;
  tensor.fqn = entry.fqn;
  tensor.dtype = entry.dtype;
  tensor.shape = entry.shape;
  tensor.requires_grad = entry.requires_grad;
  tensor.strides = entry.strides;
  if (entry.form == ChunkForm::kWhole) {
    tensor.boxes.resize(entry.shape.size(), 0);
    tensor.boxes.insert(tensor.boxes.end(), entry.shape.begin(), entry.shape.end());
    tensor.locations.push_back(entry.location);
  } else if (entry.form == ChunkForm::kGrid) {
    CAIRN_TRY(expand_grid(entry, wanted, budget, tensor));
  } else {
    CAIRN_TRY(expand_boxes(entry, wanted, budget, tensor));
  }
  return tensor;
}

Result<ChunkColumns> CompactCatalog::columns_of(const CatalogEntry& entry, std::uint64_t group) const {
  const ChunkGroup& place = entry.groups[group];
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> bytes,
                   bytes_of({place.offset, place.length, place.checksum}, "group of chunks"));
  manifest::CodedReader reader(bytes, footer_.pickle_bytes + place.offset);
  const std::uint64_t count = std::min<std::uint64_t>(kGroupChunks, entry.chunk_count - group * kGroupChunks);
  const std::size_t box_dimensions = entry.form == ChunkForm::kBoxes ? entry.shape.size() : 0;
  CAIRN_TRY_ASSIGN(ChunkColumns columns, read_columns(reader, box_dimensions, count, {}));
  if (reader.left() != 0) return reader.damaged("bytes left over in a group of chunks");
  return columns;
}

Result<void> CompactCatalog::expand_grid(const CatalogEntry& entry, const WantedKey& wanted, ByteBudget& budget,
                                         CatalogTensor& tensor) const {
  const ChunkGrid grid(entry.shape, entry.cuts);
  std::vector<std::uint64_t> chunks;
  std::vector<Box> boxes = wanted.boxes;
  if (wanted.all_chunks) {
    CAIRN_TRY(budget.charge(entry.chunk_count, kChunkNumberBytes));
    for (std::uint64_t chunk = 0; chunk < entry.chunk_count; ++chunk) chunks.push_back(chunk);
    boxes.clear();
  }
  for (const Box& box : boxes) {
    CAIRN_TRY(budget.charge(grid.count_in(box), kChunkNumberBytes));
    grid.append_chunks_in(box, chunks);
  }
  if (boxes.size() > 1) {
    std::sort(chunks.begin(), chunks.end());
    chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  }
  CAIRN_TRY(budget.charge(chunks.size(), chunk_bytes(entry.shape.size())));
  std::optional<std::uint64_t> group;
  ChunkColumns of_group;
  for (const std::uint64_t chunk : chunks) {
    if (!entry.groups.empty() && chunk / kGroupChunks != group) {
      group = chunk / kGroupChunks;
      CAIRN_TRY_ASSIGN(of_group, columns_of(entry, *group));
    }
    CAIRN_TRY_ASSIGN(const ItemLocation location,
                     group ? of_group.location(chunk % kGroupChunks, bounds_) : entry.columns.location(chunk, bounds_));
    grid.append_box(chunk, tensor.boxes);
    tensor.locations.push_back(location);
  }
  return {};
}

namespace {

// Whether a chunk is wanted. `begin` and `end` have a number for each dimension.
bool is_wanted(const WantedKey& wanted, std::span<const std::int64_t> begin, std::span<const std::int64_t> end) {
  if (wanted.all_chunks) return true;
  return std::ranges::any_of(wanted.boxes, [&](const Box& box) {
    if (box.dimensions() != begin.size()) return false;
    for (std::size_t d = 0; d < begin.size(); ++d) {
      const std::int64_t low = std::max(begin[d], box.offsets()[d]);
      const std::int64_t high = std::min(end[d], box.offsets()[d] + box.sizes()[d]);
      if (low >= high) return false;
    }
    return true;
  });
}

// Fills in the box of a chunk as its begin and its end in each dimension.
Result<void> read_chunk(const ChunkColumns& columns, std::uint64_t chunk, const Extents& shape,
                        std::vector<std::int64_t>& begin, std::vector<std::int64_t>& end) {
  for (std::size_t d = 0; d < shape.size(); ++d) {
    begin[d] = columns.boxes[d][chunk];
    const std::int64_t size = columns.boxes[shape.size() + d][chunk];
    if (size > shape[d] || begin[d] > shape[d] - size) {
      return corrupt_catalog("a chunk that does not lie in its tensor");
    }
    end[d] = begin[d] + size;
  }
  return {};
}

}  // namespace

Result<void> CompactCatalog::expand_boxes(const CatalogEntry& entry, const WantedKey& wanted, ByteBudget& budget,
                                          CatalogTensor& tensor) const {
  const std::size_t dimensions = entry.shape.size();
  std::vector<std::int64_t> begin(dimensions);
  std::vector<std::int64_t> end(dimensions);
  const auto take_wanted = [&](const ChunkColumns& columns, std::uint64_t count) -> Result<void> {
    CAIRN_TRY(budget.charge(count, kChunkNumberBytes));  // the time to look at the chunks
    for (std::uint64_t chunk = 0; chunk < count; ++chunk) {
      CAIRN_TRY(read_chunk(columns, chunk, entry.shape, begin, end));
      if (!is_wanted(wanted, begin, end)) continue;
      CAIRN_TRY(budget.charge(chunk_bytes(dimensions)));
      CAIRN_TRY_ASSIGN(const ItemLocation location, columns.location(chunk, bounds_));
      tensor.boxes.insert(tensor.boxes.end(), begin.begin(), begin.end());
      for (std::size_t d = 0; d < dimensions; ++d) tensor.boxes.push_back(end[d] - begin[d]);
      tensor.locations.push_back(location);
    }
    return {};
  };
  if (entry.groups.empty()) return take_wanted(entry.columns, entry.chunk_count);
  for (std::uint64_t group = 0; group < entry.groups.size(); ++group) {
    for (std::size_t d = 0; d < dimensions; ++d) {
      begin[d] = entry.group_boxes[d][group];
      end[d] = entry.group_boxes[dimensions + d][group];
    }
    if (!is_wanted(wanted, begin, end)) continue;
    CAIRN_TRY_ASSIGN(const ChunkColumns columns, columns_of(entry, group));
    CAIRN_TRY(take_wanted(columns, columns.places[0].size()));
  }
  return {};
}

Result<void> CompactCatalog::for_each_in_block(std::size_t block, const TakeEntry& take) const {
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> bytes, bytes_of(blocks_[block], "block"));
  BlockReader reader(bytes, footer_.pickle_bytes + blocks_[block].offset, bounds_);
  while (!reader.at_end()) {
    CAIRN_TRY_ASSIGN(const CatalogEntry* entry, reader.next());
    CAIRN_TRY(take(*entry));
  }
  return {};
}

Result<void> CompactCatalog::for_each(const TakeTensor& take_tensor, const TakeValue& take_value) const {
  std::vector<std::uint64_t> hashes;
  ByteBudget budget(footer_.pickle_bytes);
  const auto take = [&](const CatalogEntry& entry) -> Result<void> {
    if (!entry.is_tensor) return take_value({std::string(entry.fqn), entry.location});
    Result<CatalogTensor> tensor = expand(entry, {entry.fqn, true, {}}, budget);
    if (!tensor) return std::move(tensor).error().key(entry.fqn);
    return take_tensor(*tensor);
  };
  for (std::size_t number = 0; number < blocks_.size(); ++number) {
    CAIRN_TRY(for_each_in_block(number, [&](const CatalogEntry& entry) {
      hashes.push_back(std::uint64_t{hash_of_name(entry.fqn)} << 32 | number);
      return take(entry);
    }));
  }
  if (hashes.size() != footer_.key_count) return corrupt_catalog("a compact catalog with another number of keys");
  return check_pages(std::move(hashes));
}

// `hashes`: for each key the hash of its name, then in 32 bits the number of its block.
Result<void> CompactCatalog::check_pages(std::vector<std::uint64_t> hashes) const {
  std::sort(hashes.begin(), hashes.end());
  auto next = hashes.begin();
  for (std::size_t number = 0; number < pages_.size(); ++number) {
    CAIRN_TRY_ASSIGN(const std::vector<std::byte> page, bytes_of(pages_[number], "page"));
    manifest::CodedReader reader(page, footer_.pickle_bytes + pages_[number].offset);
    std::uint64_t hash = page_bits_ == 0 ? 0 : std::uint64_t{number} << (32 - page_bits_);
    while (reader.left() != 0) {
      CAIRN_TRY_ASSIGN(const std::uint64_t difference, reader.varint());
      CAIRN_TRY_ASSIGN(const std::uint64_t block, reader.varint());
      if (difference >= kHashCount) return reader.damaged("a hash that cannot be");
      hash += difference;
      if (next == hashes.end() || *next >> 32 != hash || (*next & (kHashCount - 1)) != block) {
        return reader.damaged("a page that contradicts the blocks");
      }
      ++next;
    }
  }
  if (next != hashes.end()) return corrupt_catalog("keys of the compact catalog that no page lists");
  return {};
}

}  // namespace cairn::compact_catalog
