// StateDict: the state to save, or to fill by a load: tensors by pointer, values by value, each under its path.
//
// One thread at a time. A StateDict owns its values and serialised payloads. The memory of tensors belongs to the
// caller and must live, unchanged, until the call with the StateDict returns.
#pragma once

#include <cairn/box.h>
#include <cairn/device.h>
#include <cairn/dtype.h>
#include <cairn/value.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace cairn {

// A step to an entry in the nested state: a key of a mapping, or a position in a list.
using PathElement = std::variant<std::string, std::int64_t>;
using Path = std::vector<PathElement>;

// The flat name of a path: its elements joined by dots (the rule of DCP).
std::string fqn_of(const Path& path);

// Live memory of a tensor, or of a rank's part of a tensor. `strides` count elements and may be 0 or negative.
struct TensorView {
  void* data = nullptr;  // the element at index 0, ..., 0; may be null if there are no elements
  DType dtype = DType::kFloat32;
  Extents sizes;
  Extents strides;
  // Where `data` is. A call that takes tensors of the CPU alone fails with kUnsupported for other tensors.
  Device device = {};

  static TensorView contiguous(void* data, DType dtype, Extents sizes, Device device = {}) {
    Extents strides = row_major_strides(sizes);
    return {data, dtype, std::move(sizes), std::move(strides), device};
  }
  static TensorView contiguous(const void* data, DType dtype, Extents sizes) {  // for a save, which only reads
    return contiguous(const_cast<void*>(data), dtype, std::move(sizes));
  }
};

// Properties of a tensor beside its elements.
struct TensorTraits {
  bool requires_grad = false;
  // Several ranks hold this chunk with equal elements (DTensor's Replicate, HSDP): the ranks may share the writing of
  // the chunk. If a chunk of several ranks is not declared `replicated`, a single rank writes the whole chunk.
  bool replicated = false;
};

// A chunk of a tensor: `local` holds the elements of `box`, in a tensor of shape `global_shape`.
struct TensorEntry {
  TensorView local;
  Extents global_shape;
  Box box;
  TensorTraits traits = {};
};

// Bytes serialised by the caller, stored unchanged.
struct SerializedValue {
  std::string payload;  // in the format of torch.save, if stock readers read the checkpoint
};
// A tensor that only its framework can describe (quantised, subclass), or a chunk of one, as a torch.save payload.
struct SerializedTensor {
  std::string payload;
  DType dtype = DType::kFloat32;
  Extents shape;  // of the whole tensor
  bool requires_grad = false;
  std::optional<Box> chunk = {};  // the place of the payload's elements in the tensor; nullopt: the whole tensor
};

struct Entry {
  std::string fqn;
  Path path;
  std::variant<TensorEntry, Value, SerializedValue, SerializedTensor> content;
};

class StateDict {
 public:
  // Allocates room for `more` new entries at once; otherwise the room grows with the entries.
  void reserve(std::size_t more);

  // Adds a whole tensor. All add functions fail with kInvalidArgument, and add nothing, if the flat name is taken, or
  // if shape, strides or offsets do not fit together. Chunks of equal dtype and global shape may share a flat name.
  Result<void> add_tensor(Path path, TensorView tensor, TensorTraits traits = {});
  Result<void> add_tensor(std::string fqn, TensorView tensor, TensorTraits traits = {});
  // Adds a chunk of a larger tensor: the box at `offsets` with the sizes `local.sizes`.
  Result<void> add_chunk(Path path, TensorView local, Extents global_shape, Extents offsets, TensorTraits traits = {});
  Result<void> add_chunk(std::string fqn, TensorView local, Extents global_shape, Extents offsets);
  // Adds a plain value. For a load: the value that stays if the checkpoint lacks the key and a partial load is allowed.
  Result<void> add_value(Path path, Value value);
  Result<void> add_value(std::string fqn, Value value);
  Result<void> add_serialized(Path path, SerializedValue value);
  // Chunks may share a flat name, with each other and with chunks of add_chunk(), as these do.
  Result<void> add_serialized(Path path, SerializedTensor tensor);

  const std::vector<Entry>& entries() const noexcept { return entries_; }
  // For filling. The caller must not change the names or the number of entries.
  std::vector<Entry>& entries() noexcept { return entries_; }
  // The first entry with the flat name, or null.
  const Entry* find(std::string_view fqn) const;
  // The value under `fqn`; null if `fqn` is missing or a tensor.
  const Value* value(std::string_view fqn) const;

 private:
  // A slot of the hash table of names: the first entry with a name.
  struct Slot {
    std::size_t hash = 0;
    std::size_t entry = kNoEntry;
  };
  static constexpr std::size_t kNoEntry = static_cast<std::size_t>(-1);

  Result<void> add(Entry&& entry);  // an entry with a new name
  void append(Entry&& entry, std::size_t hash);
  // The slot of the name, or the free slot for the name. `slots_` is not empty.
  std::size_t slot_of(std::string_view fqn, std::size_t hash) const;
  const Entry* find(std::string_view fqn, std::size_t hash) const;
  void grow_slots(std::size_t count);  // to at least `count`

  std::vector<Entry> entries_;  // in the order added
  // Hash table of the names, with linear probing, at most half full. The entry, not the slot, stores the name.
  std::vector<Slot> slots_;  // a power of two, or empty
};

}  // namespace cairn
