// Value: a plain Python value. A checkpoint holds tensors and values. Inert: a Value never refers to code.
#pragma once

#include <cairn/box.h>
#include <cairn/dtype.h>

#include <cstddef>
#include <cstdint>
#include <memory>
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

}  // namespace cairn
