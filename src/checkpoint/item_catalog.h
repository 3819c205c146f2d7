// ItemCatalog: the catalog of a directory of torch_checkpointing, put together from the files of all items and ranks.
//
// A tensor of metadata.pkl is the union of the boxes that its ranks hold; of a box that several ranks hold, the first
// rank counts. If the box is the whole record of a .pt file, the CRCs of the records must be equal: two stages of a
// pipeline may save two tensors under one key. Any other key is in one file, or is equal in the files of all ranks that
// hold it. A key about which the ranks disagree, or of a class that only the saving program knows, stays in the catalog
// as a value that no call reads (Unread): the other keys stay readable.
//
// One thread at a time. The files of one item are added in the order of their ranks. The metadata and the items outlive
// the ItemCatalog, and so do the DataFiles of compares_with().
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/found_items.h"
#include "core/byte_budget.h"
#include "core/seeded_hash.h"
#include "data_file/data_file.h"
#include "format/torch_checkpointing/saved_metadata.h"

namespace cairn::checkpointer {

class ItemCatalog {
 public:
  // `metadata` is null if the directory has none.
  explicit ItemCatalog(const torch_checkpointing::SavedMetadata* metadata);

  // The next file of the catalog. kCorrupt if the file contradicts the metadata: key, file, expected and found.
  Result<void> add_torch(const FoundItemFile& file, data_file::DataFile& data);
  Result<void> add_safetensors(const FoundItem& item, const FoundItemFile& file, const safetensors::Header& header,
                               data_file::DataFile& data);
  Result<void> add_json(const FoundItem& item, const FoundItemFile& file, const Value& value, std::uint64_t bytes);
  Result<void> add_bytes(const FoundItem& item, const FoundItemFile& file, const data_file::DataFile& data);
  // A JSON file that can't be decoded, of `bytes` bytes: a key that no call reads.
  void add_undecoded(const FoundItem& item, const FoundItemFile& file, std::uint64_t bytes, std::string why);

  // Whether a later file is compared with a value of this file, which then stays open until finish().
  bool compares_with(const data_file::DataFile& data) const { return compared_.contains(&data); }

  using Unread = Checkpoint::Impl::UnreadKey;

  struct Content {
    Catalog catalog;
    std::map<std::string, Unread, std::less<>> unread;
    std::map<std::string, Value, std::less<>> values;  // of JSON files
  };
  // kCorrupt if the files lack a tensor of the metadata. Call once, after all files.
  Result<Content> finish(const std::vector<FoundItem>& items);

 private:
  // A tensor in the file of a rank.
  struct LocalTensor {
    DType dtype = DType::kFloat32;
    Extents sizes;
    Extents strides;
    ItemLocation location;
    bool requires_grad = false;
    std::string_view local_of = {};  // as StateFile::Entry
    std::optional<Extents> global_sizes = {};
    // Equal for equal elements, if the tensor is the whole record of a .pt file.
    std::optional<std::uint32_t> checksum = {};
  };

  struct Key {
    std::string fqn;
    Path path;
    const torch_checkpointing::SavedItem::Tensor* saved = nullptr;
    std::size_t last_sharding = 0;  // of `saved`: that of the rank before
    bool is_tensor = false;
    CatalogTensor tensor;
    ItemLocation location;  // of the first rank's part
    std::vector<std::uint32_t> ranks;
    std::vector<std::string> files;  // of the first two ranks, for errors
    // LocalTensor::checksum of the rank that counts, by box.
    std::unordered_map<std::string, std::optional<std::uint32_t>, SeededHash> boxes;
    const data_file::DataFile* first = nullptr;  // of a value: the file of the first rank
    std::optional<Unread> unread;
  };

  Key& key_of(std::string fqn, Path path, const FoundItemFile& file);
  Result<void> add_tensor(Key& key, const FoundItemFile& file, const LocalTensor& local, data_file::DataFile& data);
  Result<void> add_sharded(Key& key, const FoundItemFile& file, const LocalTensor& local, data_file::DataFile& data);
  Result<void> add_pieces(Key& key, const std::vector<torch_checkpointing::BoxSharding::Piece>& pieces,
                          const LocalTensor& local, data_file::DataFile& data);
  void add_alone(Key& key, const LocalTensor& local);
  // `checksum`: LocalTensor::checksum, if the box is the whole tensor of the rank.
  static void add_box(Key& key, const Box& box, const ItemLocation& location,
                      std::optional<std::uint32_t> checksum = std::nullopt);
  void add_value(Key& key, const ItemLocation& location, const std::function<bool()>& is_equal);
  Result<void> add_json_entry(Path& path, const Value& value, const FoundItemFile& file, std::uint64_t bytes);
  const torch_checkpointing::ShardingOfRanks* sharding_of(Key& key, std::uint32_t rank) const;
  Result<void> check_held(const torch_checkpointing::SavedItem& saved, const FoundItem& found);
  Key* value_around(std::string_view fqn);
  std::uint32_t file_number() const { return static_cast<std::uint32_t>(catalog_.files.size() - 1); }

  const torch_checkpointing::SavedMetadata* metadata_;
  std::unordered_map<std::string_view, const torch_checkpointing::SavedItem::Tensor*, SeededHash> saved_;
  std::unordered_set<std::string_view, SeededHash> saved_twice_;
  std::vector<Key> keys_;
  std::unordered_map<std::string, std::size_t, SeededHash, std::equal_to<>> places_;  // by fqn
  std::unordered_set<const data_file::DataFile*> compared_;
  std::map<std::string, Value, std::less<>> json_values_;
  Catalog catalog_;
  ByteBudget budget_{0};  // of the current file
};

}  // namespace cairn::checkpointer
