// Catalog: the content of a checkpoint: every tensor with its chunks, every value, every file, and the place of each
// item. matches_key: globs for the keys. KeyRename: new names for the keys.
//
// A value; safe to read from several threads. Compact: a chunk costs 24 bytes and two integers per dimension.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>
#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cairn {

// 128 random bits, unique to a save.
struct SaveId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const SaveId&, const SaveId&) = default;
};
std::string to_hex(const SaveId& id);  // 32 digits
// A UUID, the text form of DCP's save ids.
std::string uuid_text(const SaveId& id);
std::string to_decimal(const SaveId& id);  // 39 digits, zero-padded: names have equal lengths

// The place of an item's bytes.
struct ItemLocation {
  std::uint32_t file = 0;    // index into Catalog::files
  std::uint64_t offset = 0;  // bytes from the start of the file to the item
  std::uint64_t length = 0;  // bytes of the item, framing (zip headers) included
};

// A tensor of the checkpoint.
struct CatalogTensor {
  std::string fqn;
  DType dtype = DType::kFloat32;
  Extents shape;
  bool requires_grad = false;
  // For each chunk: its offsets, then its sizes, 2 * shape.size() numbers. Within the shape: checked by the reader.
  std::vector<std::int64_t> boxes;
  std::vector<ItemLocation> locations;  // one per chunk; length 0: the storage has no bytes of the chunk
  // The strides that the saved tensor had in memory, in elements: those of the first chunk's local tensor, as
  // torch 2.15 and later record. Null if none are recorded. No negative number; the count may differ from the
  // dimensions.
  SharedExtents strides = nullptr;

  std::size_t chunk_count() const noexcept { return locations.size(); }
  Box chunk(std::size_t index) const;
};

// A non-tensor.
struct CatalogValue {
  std::string fqn;
  ItemLocation location;
};

// How the data files hold the items.
enum class CheckpointFormat : std::uint8_t {
  kDcp,                 // each item is a torch.save archive; `.metadata` names the items' places
  kSafetensors,         // the elements of each tensor, row-major; the headers of the files name the tensors' places
  kTorchSave,           // one file of torch.save: the storages of the tensors; its pickle names the tensors' places
  kTorchCheckpointing,  // a file of each item and rank, as Meta's package torch_checkpointing writes
};

std::string_view name_of(CheckpointFormat format);  // "dcp", "safetensors", "torch", "torch_checkpointing"

// The hash of the tables of keys, with a seed of this process: an attacker can't choose keys with equal hashes, which
// would make each look-up walk through all keys. Hashes must not leave the process.
struct KeyHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view key) const noexcept;
};

struct Catalog {
 public:
  // The entry of a key: an index into `tensors`, or into `values`.
  struct KeyRef {
    bool is_tensor;
    std::uint32_t index;
  };

  Catalog() = default;
  Catalog(Catalog&&) noexcept = default;
  Catalog& operator=(Catalog&&) noexcept = default;
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;
  ~Catalog() = default;

  // Builds the look-up by name. To be called when `tensors` and `values` are complete. Fails with kCorrupt if two
  // entries have the same name.
  Result<void> index();
  const CatalogTensor* find_tensor(std::string_view fqn) const;
  const CatalogValue* find_value(std::string_view fqn) const;
  // At most `count_max` keys with names similar to `fqn`, the nearest first; may be empty. For error messages: the work
  // is bounded (about 0.1 s), and the result may miss keys of a very large catalog.
  std::vector<std::string> nearest_keys(std::string_view fqn, std::size_t count_max) const;

  CheckpointFormat format = CheckpointFormat::kDcp;
  std::vector<CatalogTensor> tensors;  // in the order of the metadata
  std::vector<CatalogValue> values;
  std::vector<KeyRef> keys;  // all keys, in the metadata's order
  std::vector<std::string>
      files;  // relative to the checkpoint's directory; unchecked names from the metadata: do not trust them
  // Pairs of a flat name and the key's nested path (DCP's planner_data), in the metadata's order. Empty for a
  // checkpoint of an unflattened state dict.
  std::vector<std::pair<std::string, Path>> paths;
  // Keys of items that were written through stream transforms (compression), with the names of the transforms. The
  // engine can't read transformed items.
  std::unordered_map<std::string, std::string, KeyHash> transforms;
  std::optional<std::string> version;        // DCP's version string
  std::optional<std::string> checkpoint_id;  // as given to the writer
  std::optional<std::string> save_id;        // DCP's own, a UUID in text
  // Attributes of the Metadata object without a field above, by name, kept for rewriting the metadata without loss. Has
  // "planner_data" if planner_data is not a flat mapping as in `paths`.
  std::vector<std::pair<std::string, Value>> extra;

 private:
  // The keys are views into `tensors` and `values`: the views stay valid after a move of the catalog.
  std::unordered_map<std::string_view, KeyRef, KeyHash> by_fqn_;
};

// The name of the file whose rename commits a checkpoint.
inline constexpr std::string_view kMetadataName = ".metadata";

// `.metadata`; `__{rank}.metadata` for the checkpoint that a rank saved alone.
inline std::string metadata_name(std::optional<std::uint32_t> alone_as_rank) {
  return (alone_as_rank ? "__" + std::to_string(*alone_as_rank) : "") + std::string(kMetadataName);
}

// Whether `pattern` matches the whole key, or the key up to a dot: the pattern "model.layers.0" matches every key below
// model.layers.0. `*` is any run of characters, dots included; `?` is a UTF-8 character, or a byte that is not UTF-8;
// `[abc]`, `[a-z]` and `[!a-z]` are a character of a set; `\` quotes the next character. A `[` without `]` is a
// literal. Time is bounded by the product of both lengths.
bool matches_key(std::string_view pattern, std::string_view key);

// Whether one of the patterns matches the key. A selection without patterns selects every key.
bool selects_key(std::span<const std::string> patterns, std::string_view key);

// `from` without a star is a prefix: the key `from` itself, and all keys that continue with a dot. A trailing dot in
// `from` is allowed; the empty prefix is of every key. If `to` is empty, the dot behind the prefix is removed, too.
// `from` with stars is a pattern of the whole key: each star stands for the shortest run of characters that lets the
// rest match, and each star of `to`, which has equally many, is replaced by the run of its turn. `\` quotes a
// character.
struct KeyRename {
  std::string from;
  std::string to;
};

}  // namespace cairn
