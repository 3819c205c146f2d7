// CompactCatalog: finds keys in the compact catalog of a `.metadata` file, and decodes only these keys, and of them
// only the chunks that overlap given boxes.
//
// Immutable once open, except for a block that it keeps under a lock: safe to use from several threads if the source
// is. Every part is checked by its checksum before its use, and every number before it counts. Memory and time are in
// proportion to what is read: the directory at open(), and the blocks and chunks of the wanted keys.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>
#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/byte_budget.h"
#include "core/byte_source.h"
#include "format/compact_catalog/entry.h"
#include "format/compact_catalog/footer.h"

namespace cairn::compact_catalog {

struct WantedKey {
  std::string_view fqn;  // different for each key of a call
  bool all_chunks = false;
  std::vector<Box> boxes;  // unless all_chunks: only chunks that overlap one of the boxes
};

class CompactCatalog {
 public:
  // The catalog at the end of the first `front_bytes` bytes of `file`, which outlives the catalog. `file_count` is the
  // number of files in the commit record. Nullopt if there is no catalog, or if a later version of Cairn wrote it.
  // kCorrupt if the catalog is damaged.
  static Result<std::optional<CompactCatalog>> open(const ByteSource& file, std::uint64_t front_bytes,
                                                    std::size_t file_count);

  std::uint64_t key_count() const { return footer_.key_count; }

  // The wanted keys that the checkpoint has, indexed; without names of files. Numbers of files are places in the commit
  // record. Of a tensor only the wanted chunks, sorted by box. kCorrupt if a part is damaged; kUnsafe for a small
  // catalog that stands for far more chunks than the pickle can have. Errors name the offset in the file.
  Result<Catalog> find(std::span<const WantedKey> wanted) const;

  // The keys stand in blocks, in the order of the metadata. Calls `take` for every key of a block, without expanding
  // chunks; an entry is valid during its call. Fails with the error of `take`, and as find().
  std::size_t block_count() const { return blocks_.size(); }
  using TakeEntry = std::function<Result<void>(const CatalogEntry&)>;
  Result<void> for_each_in_block(std::size_t block, const TakeEntry& take) const;

  // Calls `take` for every key, in the order of the metadata, with all chunks. Fails with the error of `take`, and with
  // kCorrupt if the catalog is damaged, or if a key cannot be found by its name.
  using TakeTensor = std::function<Result<void>(const CatalogTensor&)>;
  using TakeValue = std::function<Result<void>(const CatalogValue&)>;
  Result<void> for_each(const TakeTensor& take_tensor, const TakeValue& take_value) const;

 private:
  // Bytes of the catalog with a checksum.
  struct Part {
    std::uint64_t offset = 0;  // from the start of the catalog
    std::uint64_t length = 0;
    std::uint32_t checksum = 0;
  };
  class Search;
  // A block whose entries stay: the views of the entries are into `names`.
  struct DecodedBlock {
    std::uint32_t number = 0;
    std::deque<std::string> names;
    std::vector<CatalogEntry> entries;
  };
  // The block of the last search for a single key: a caller that walks through the keys asks for neighbours.
  struct LastBlock {
    std::mutex mutex;
    std::shared_ptr<const DecodedBlock> block;  // shared with running searches
  };

  CompactCatalog(const ByteSource& file, const Footer& footer)
      : file_(&file),
        footer_(footer),
        bounds_{footer.pickle_bytes / kPickleBytesPerChunk, footer.file_count},
        last_block_(std::make_unique<LastBlock>()) {}
  Result<void> read_directory();
  Result<Part> read_part(manifest::CodedReader& reader, std::uint64_t& end) const;
  Result<std::vector<std::byte>> bytes_of(const Part& part, const char* what) const;
  Result<std::vector<std::uint32_t>> blocks_with(std::uint32_t hash) const;
  Result<std::shared_ptr<const DecodedBlock>> decoded_block(std::uint32_t number) const;
  Result<CatalogTensor> expand(const CatalogEntry& entry, const WantedKey& wanted, ByteBudget& budget) const;
  Result<void> expand_grid(const CatalogEntry& entry, const WantedKey& wanted, ByteBudget& budget,
                           CatalogTensor& tensor) const;
  Result<void> expand_boxes(const CatalogEntry& entry, const WantedKey& wanted, ByteBudget& budget,
                            CatalogTensor& tensor) const;
  Result<ChunkColumns> columns_of(const CatalogEntry& entry, std::uint64_t group) const;
  Result<void> check_pages(std::vector<std::uint64_t> hashes) const;

  // A chunk and its item take more bytes in every pickle: a bound for the numbers of the catalog.
  static constexpr std::uint64_t kPickleBytesPerChunk = 8;

  const ByteSource* file_;
  Footer footer_;
  EntryBounds bounds_;
  std::vector<Part> blocks_;
  std::vector<Part> pages_;
  unsigned page_bits_ = 0;
  std::unique_ptr<LastBlock> last_block_;
};

}  // namespace cairn::compact_catalog
