// StateDict: what is to be saved, or filled by a load: tensors by pointer, values by value, each under its path.
//
// One thread at a time. It owns its values and serialised payloads; the memory behind tensors stays the caller's and
// must live, unchanged, until the call that was given the StateDict returns.
#pragma once

#include <cairn/box.h>
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

// Where an entry sits in the nested state: a key of a mapping, or a position in a list.
using PathElement = std::variant<std::string, std::int64_t>;
using Path = std::vector<PathElement>;

// The flat name of a path: its elements joined by dots (the rule of DCP).
std::string fqn_of(const Path& path);

// Live memory of a tensor, or of one rank's part of it. `strides` count elements and may be 0 or negative.
struct TensorView {
  void* data = nullptr;  // the element at index 0, ..., 0; may be null if there are no elements
  DType dtype = DType::kFloat32;
  Extents sizes;
  Extents strides;

  static TensorView contiguous(void* data, DType dtype, Extents sizes) {
    Extents strides = row_major_strides(sizes);
    return {data, dtype, std::move(sizes), std::move(strides)};
  }
  static TensorView contiguous(const void* data, DType dtype, Extents sizes) {  // for a save, which only reads
    return contiguous(const_cast<void*>(data), dtype, std::move(sizes));
  }
};

// What is known of a tensor beside its elements.
struct TensorTraits {
  bool requires_grad = false;
  // Other ranks hold the same chunk with the same elements (DTensor's Replicate, HSDP): they may share the writing of
  // it. A chunk that is equal by name alone is written whole by one rank.
  bool replicated = false;
};

// One chunk of one tensor: `local` holds the elements of `box` of the tensor `global_shape`.
struct TensorEntry {
  TensorView local;
  Extents global_shape;
  Box box;
  TensorTraits traits = {};
};

// Bytes that the caller has serialised: stored as they are.
struct SerializedValue {
  std::string payload;  // as torch.save writes it, if stock readers are to understand it
};
// A whole tensor that only its framework can describe (quantised, subclass), as a torch.save payload.
struct SerializedTensor {
  std::string payload;
  DType dtype = DType::kFloat32;
  Extents shape;
  bool requires_grad = false;
};

struct Entry {
  std::string fqn;
  Path path;
  std::variant<TensorEntry, Value, SerializedValue, SerializedTensor> content;
};

class StateDict {
 public:
  // Makes room for that many more entries at once; without it, room is made as they come.
  void reserve(std::size_t more);

  // A whole tensor. All fail with kInvalidArgument if the flat name is taken (chunks may share one, all of one dtype
  // and global shape) or if shape, strides or offsets do not fit together; nothing is added then.
  Result<void> add_tensor(Path path, TensorView tensor, TensorTraits traits = {});
  Result<void> add_tensor(std::string fqn, TensorView tensor, TensorTraits traits = {});
  // A chunk of a larger tensor: the elements from `offsets` on, as many as `local.sizes` says.
  Result<void> add_chunk(Path path, TensorView local, Extents global_shape, Extents offsets, TensorTraits traits = {});
  Result<void> add_chunk(std::string fqn, TensorView local, Extents global_shape, Extents offsets);
  // A plain value. For a load: the value that stays if the checkpoint does not have the key and a partial load is
  // allowed.
  Result<void> add_value(Path path, Value value);
  Result<void> add_value(std::string fqn, Value value);
  Result<void> add_serialized(Path path, SerializedValue value);
  Result<void> add_serialized(Path path, SerializedTensor tensor);

  const std::vector<Entry>& entries() const noexcept { return entries_; }
  // To be filled; names, and how many entries there are, stay as they are.
  std::vector<Entry>& entries() noexcept { return entries_; }
  // The first entry of that name, or null.
  const Entry* find(std::string_view fqn) const;
  // The value under `fqn`, or null if there is none or it is a tensor.
  const Value* value(std::string_view fqn) const;

 private:
  // A place of the table of names: the first entry of one of them.
  struct Slot {
    std::size_t hash = 0;
    std::size_t entry = kNoEntry;
  };
  static constexpr std::size_t kNoEntry = static_cast<std::size_t>(-1);

  Result<void> add(Entry&& entry);  // one that shares its name with no other
  void append(Entry&& entry, std::size_t hash);
  // Where the name is, or where it would be. There are slots.
  std::size_t slot_of(std::string_view fqn, std::size_t hash) const;
  const Entry* find(std::string_view fqn, std::size_t hash) const;
  void grow_slots(std::size_t count);  // to so many at least

  std::vector<Entry> entries_;  // in the order added
  // The names by hash, with linear probing, at most half of it used: each name is held once, by its entry.
  std::vector<Slot> slots_;  // as many as a power of two, or none
};

}  // namespace cairn
