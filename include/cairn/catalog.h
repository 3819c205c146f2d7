// Catalog: what a checkpoint holds and where: every tensor with its chunks, every value, every file.
//
// A value; safe to read from several threads. Compact: a chunk costs 24 bytes and two integers per dimension.
#pragma once

#include <cairn/box.h>
#include <cairn/dtype.h>
#include <cairn/seeded_hash.h>
#include <cairn/state_dict.h>
#include <cairn/value.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cairn {

// 128 random bits that name one save.
struct SaveId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const SaveId&, const SaveId&) = default;
};
std::string to_hex(const SaveId& id);  // 32 digits
// The same as DCP writes save ids: a UUID.
std::string uuid_text(const SaveId& id);
std::string to_decimal(const SaveId& id);  // 39 digits, zero-padded, so that names have one length

// Where an item's bytes lie.
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
  // Per chunk: its offsets, then its sizes, 2 * shape.size() numbers. Within the shape: checked when it was read.
  std::vector<std::int64_t> boxes;
  std::vector<ItemLocation> locations;  // one per chunk; length 0 means that storage has no bytes for it

  std::size_t chunk_count() const noexcept { return locations.size(); }
  Box chunk(std::size_t index) const;
};

// A non-tensor.
struct CatalogValue {
  std::string fqn;
  ItemLocation location;
};

struct Catalog {
 public:
  // What kind of entry a key is: index into `tensors`, or into `values`.
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

  // Builds the look-up by name. Call it once `tensors` and `values` are complete. Fails with kCorrupt on a name used
  // twice.
  Result<void> index();
  const CatalogTensor* find_tensor(std::string_view fqn) const;
  const CatalogValue* find_value(std::string_view fqn) const;
  // At most `count_max` keys whose names are like `fqn`, the nearest first; empty if none is. For error messages: the
  // work is bounded (about 0.1 s), so that of very many keys some may be left out.
  std::vector<std::string> nearest_keys(std::string_view fqn, std::size_t count_max) const;

  std::vector<CatalogTensor> tensors;  // in the order of the metadata
  std::vector<CatalogValue> values;
  std::vector<KeyRef> keys;        // all of them, in the metadata's order
  std::vector<std::string> files;  // relative to the checkpoint's directory; as found, so not to be trusted
  // The nested place of each key that has one (DCP's planner_data), in the metadata's order. Each key of `paths` is the
  // flat name; a checkpoint of an unflattened state dict has none.
  std::vector<std::pair<std::string, Path>> paths;
  // Keys whose items went through stream transforms (compression) when they were written, and the names of these. Such
  // items cannot be read here.
  std::unordered_map<std::string, std::string, SeededHash> transforms;
  std::optional<std::string> version;        // DCP's version string
  std::optional<std::string> checkpoint_id;  // as the writer was told
  std::optional<std::string> save_id;        // DCP's own, a UUID in text
  // What we do not interpret, kept so that rewriting the metadata loses nothing: attributes of the Metadata object, by
  // name; "planner_data" appears here if it is not the flat mapping above.
  std::vector<std::pair<std::string, Value>> extra;

 private:
  // Views into `tensors` and `values`: moves keep them, copies do not.
  std::unordered_map<std::string_view, KeyRef, SeededHash> by_fqn_;
};

}  // namespace cairn
