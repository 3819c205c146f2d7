// StateDict: the state to save, or to fill by a load: tensors by pointer, values by value, each under its path.
// Value: a plain Python value.
//
// One thread at a time. A StateDict owns its values and serialised payloads. The memory of tensors belongs to the
// caller and must live, unchanged, until the call with the StateDict returns.
#pragma once

#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace cairn {

class Value;

// A text that several parts of a value share: a file may refer to a long text many times.
using SharedText = std::shared_ptr<const std::string>;

struct None {
  friend bool operator==(None, None) { return true; }
};

// Python's bytes, as opposed to text.
struct Bytes {
  std::string data;
  friend bool operator==(const Bytes&, const Bytes&) = default;
};

// An integer beyond 64 bits: two's complement, little endian, as short as possible (pickle's LONG).
struct BigInt {
  std::string data;
  friend bool operator==(const BigInt&, const BigInt&) = default;
};

struct Complex {
  double real = 0;
  double imaginary = 0;
  friend bool operator==(const Complex&, const Complex&) = default;
};

struct List {
  std::vector<Value> items;
};
struct Tuple {
  std::vector<Value> items;
};
struct Set {
  std::vector<Value> items;
};
// In insertion order; keys are any plain values.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  bool ordered = false;  // a collections.OrderedDict
};

// Elements of one plain dtype with a shape: a NumPy array or scalar, or a tensor. Row-major bytes.
struct Array {
  enum class Kind : std::uint8_t { kNumpyArray, kNumpyScalar, kTensor };
  Kind kind = Kind::kNumpyArray;
  DType dtype = DType::kFloat32;
  Extents shape;
  std::string data;
  friend bool operator==(const Array&, const Array&) = default;
};

// The bytes of a storage that several parts of a value share: an object of an unknown class may name a large storage
// many times.
using SharedArray = std::shared_ptr<const Array>;

// A value of an unknown class, kept as the content of its pickle and never executed: the call
// `module.name(*arguments)`, the items for the call's result, and the state for the call's result.
struct Object;

// A checkpoint holds tensors and values. Inert: a Value never refers to code.
class Value {
 public:
  // Large alternatives are allocated apart, and a Value then takes 48 bytes: a checkpoint may hold millions of small
  // values.
  using Variant = std::variant<None, bool, std::int64_t, double, std::string, Bytes, BigInt, Complex, List, Tuple, Set,
                               Dict, std::unique_ptr<Array>, std::unique_ptr<Object>, SharedText, SharedArray>;

  Value() = default;  // None
  // From any alternative, and from types that convert to an alternative. Implicit on purpose.
  // NOLINTBEGIN(google-explicit-constructor)
  template <typename T>
  requires(std::is_constructible_v<Variant, T> && !std::is_same_v<std::remove_cvref_t<T>, Value>) Value(T&& alternative)
      : variant_(std::forward<T>(alternative)) {}
  Value(Array array) : variant_(std::make_unique<Array>(std::move(array))) {}
  Value(int integer) : variant_(static_cast<std::int64_t>(integer)) {}
  Value(const char* text) : variant_(std::string(text)) {}
  Value(std::string_view text) : variant_(std::string(text)) {}
  // NOLINTEND(google-explicit-constructor)

  Value(const Value& other);
  Value(Value&& other) noexcept;
  Value& operator=(const Value& other);
  Value& operator=(Value&& other) noexcept;
  ~Value();

  // get_if<std::string>() returns a SharedText, too, and get_if<Array>() a SharedArray.
  template <typename T>
  const T* get_if() const noexcept {
    if constexpr (std::is_same_v<T, std::string>) {
      const auto* shared = std::get_if<SharedText>(&variant_);
      return shared == nullptr ? std::get_if<std::string>(&variant_) : shared->get();
    } else if constexpr (std::is_same_v<T, Array>) {
      const auto* owner = std::get_if<std::unique_ptr<Array>>(&variant_);
      if (owner != nullptr) return owner->get();
      const auto* shared = std::get_if<SharedArray>(&variant_);
      return shared == nullptr ? nullptr : shared->get();
    } else {
      return std::get_if<T>(&variant_);
    }
  }
  template <typename T>
  requires(!std::is_same_v<T, std::string> && !std::is_same_v<T, Array>)  // parts share texts and arrays
      T* get_if() noexcept {
    return const_cast<T*>(std::as_const(*this).get_if<T>());
  }
  const Object* object() const noexcept;  // null if the value is no Object
  const Variant& variant() const noexcept { return variant_; }

  // Values are trees: an object with two references in a pickle becomes two equal parts. Two parts of a decoded value
  // with equal identities other than 0 were a single object in Python. Copies keep the identity; comparisons ignore the
  // identity.
  std::uint64_t identity() const noexcept { return identity_; }
  void set_identity(std::uint64_t identity) noexcept { identity_ = identity; }

  friend bool operator==(const Value& a, const Value& b);

 private:
  Variant variant_;
  std::uint64_t identity_ = 0;
};

struct Object {
  std::string module;
  std::string name;
  Value arguments;      // a Tuple, or None if the value is the class or function itself
  Value state;          // None if the pickle sets no state
  Value items;          // a List, Set or Dict; None if the pickle adds no items
  bool by_new = false;  // the call is module.name.__new__(module.name, *arguments)
  std::string qualified_name() const { return module + "." + name; }
};

// The qualified name of the first Object in `value`; empty if all parts of `value` are plain.
std::string first_unknown_class(const Value& value);

// Python's repr, shortened to about `characters_max` characters.
std::string to_string(const Value& value, std::size_t characters_max = 200);

// A character of a text of Python, which may not be valid UTF-8.
struct Utf8Character {
  std::uint32_t code_point = 0;
  std::size_t bytes = 1;
};

// Returns the first character of `text`, which is not empty and may not be valid UTF-8; nullopt if the first byte
// begins no character. Half of a surrogate pair counts as a character, because Python writes such halves
// (surrogatepass).
std::optional<Utf8Character> first_character(std::string_view text);

// A step to an entry in the nested state: a key of a mapping, or a position in a list.
using PathElement = std::variant<std::string, std::int64_t>;
using Path = std::vector<PathElement>;

// The flat name of a path: its elements joined by dots (the rule of DCP).
std::string fqn_of(const Path& path);

// Properties of a tensor beside its elements.
struct TensorTraits {
  bool requires_grad = false;
  // Several ranks hold this chunk with equal elements (DTensor's Replicate, HSDP): the ranks may share the writing of
  // the chunk. If a chunk of several ranks is not declared `replicated`, a single rank writes the whole chunk.
  bool replicated = false;
  // To be recorded in the metadata of a DCP checkpoint, which torch up to 2.14 then can't read; null: no strides are
  // recorded. torch 2.15 and later record the strides of each local tensor. A save fails with kInvalidArgument for a
  // negative number and for more than kDimensionsMax numbers. No load depends on them.
  SharedExtents strides = nullptr;
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
  std::optional<Box> chunk = {};    // the place of the payload's elements in the tensor; nullopt: the whole tensor
  SharedExtents strides = nullptr;  // as in TensorTraits
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
