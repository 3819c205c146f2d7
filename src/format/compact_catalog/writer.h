// CompactCatalogWriter: makes the compact catalog of a save, key by key: the copy of the metadata behind the pickle of
// `.metadata` from which a load decodes only its own keys and chunks.
//
// One thread at a time. The design is at the top of writer.cc; docs/format.md, section 5.1, has the bytes.
#pragma once

#include <cairn/catalog.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/compact_catalog/coding.h"

namespace cairn::compact_catalog {

// A `.metadata` with fewer chunks and values has no compact catalog: the pickle of so few is decoded in milliseconds.
inline constexpr std::uint64_t kItemsMin = 4096;

// The parts of a compact catalog between the two copies of its footer: all that stays equal from save to save of one
// structure.
struct CatalogBody {
  std::string bytes;  // empty: no compact catalog
  std::uint64_t directory_bytes = 0;
  std::uint64_t key_count = 0;
  std::uint32_t file_count = 0;
  std::uint32_t version = kVersionWithoutStrides;
};

class CompactCatalogWriter {
 public:
  CompactCatalogWriter();

  // Memory for the coded bytes, if their number can be estimated.
  void reserve(std::size_t bytes) { out_.reserve(bytes); }
  // Keys come in the order of the metadata, each once. The file numbers of locations are places in the commit record.
  void add(const CatalogTensor& tensor);
  void add(const CatalogValue& value);
  // Without a body for fewer than `items_min` chunks and values, and for numbers that the format cannot hold.
  CatalogBody finish(std::uint32_t file_count, std::uint64_t items_min = kItemsMin) &&;

 private:
  struct Block {
    std::uint64_t offset;
    std::uint64_t length;
    std::uint32_t checksum;
  };
  // The columns of chunks: for each dimension the offsets and the sizes (of chunks that are no grid), then files,
  // offsets and lengths of the items.
  using Columns = std::vector<std::vector<std::int64_t>>;

  void begin_key(std::string_view fqn);
  void append_strides(const Extents& strides, const Extents& shape);
  void end_key();
  void end_block();
  bool take_location(const ItemLocation& location);
  void note_location(const ItemLocation& location);
  void sort_chunks(const CatalogTensor& tensor);
  bool cut_into_grid(const CatalogTensor& tensor);
  void fill_columns(const CatalogTensor& tensor, bool with_boxes);
  void append_columns(std::string& out, std::size_t begin, std::size_t end, bool continues) const;
  void append_groups(std::size_t count, std::size_t dimensions);
  std::string take_pages(std::string& directory);

  std::string out_;
  std::string block_;
  std::string last_fqn_;  // of the block
  // The first item of the key before, in the block: the next key's columns are coded as differences.
  std::int64_t last_file_ = 0;
  std::int64_t last_end_ = 0;
  std::int64_t last_length_ = 0;
  std::vector<Block> blocks_;
  std::vector<std::uint64_t> hashes_;  // for each key: the hash of its name, then the number of its block in 32 bits
  std::uint64_t item_count_ = 0;
  bool fits_ = true;
  bool has_strides_ = false;

  // Of the key being added; members, so that their memory is used again.
  std::vector<std::uint32_t> order_;             // the chunks, sorted by box
  std::vector<std::vector<std::int64_t>> cuts_;  // the sizes of the grid's cells, by dimension
  Columns columns_;
  std::string coded_;
};

// The hash of a key's name in the pages of the catalog: part of the format.
std::uint32_t hash_of_name(std::string_view fqn);

// The compact catalog of `catalog`; without a body if items of `catalog` went through stream transforms.
CatalogBody compact(const Catalog& catalog, std::uint64_t items_min = kItemsMin);

// Appends the catalog, with its footers, to the pickle to which it belongs. Nothing for an empty body.
void append_catalog(std::string& pickle, const CatalogBody& body);
struct PickleIdentity {
  std::uint64_t bytes = 0;
  std::uint32_t checksum = 0;
};
// Whether append_catalog() would append `bytes` to the pickle.
bool is_catalog_of(std::string_view bytes, const PickleIdentity& pickle, const CatalogBody& body);
// The number of bytes that append_catalog() appends.
std::uint64_t catalog_bytes(const CatalogBody& body);

}  // namespace cairn::compact_catalog
