// Node: a handle to an object of a pickle's graph, in eight bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn::pickle {

enum class Kind : std::uint8_t {
  kNone,
  kBool,
  kInteger,     // fits into 64 bits
  kBigInteger,  // exceeds 64 bits; bytes() returns two's complement, little endian
  kReal,
  kText,  // UTF-8 as found: not validated. Also the str of Python 2, which torch.load reads as UTF-8
  kBytes,
  kByteArray,
  kTuple,
  kFrozenSet,
  kList,
  kSet,
  kDict,        // elements are key, value, key, value, ...
  kGlobal,      // a name: module() and name()
  kCall,        // callable(*arguments), then perhaps a state and items set on the result
  kInstance,    // callable.__new__(callable, *arguments), then perhaps a state and items
  kPersistent,  // persistent_id(): the container's id of an object stored outside the pickle
  kFolded,      // the number that a FoldHandler made of an instance: folded()
};

class Graph;
class Machine;

// A handle to a node of a graph, eight bytes. Two handles are equal if both refer to one node. Two equal strings at
// different places of the input are different nodes.
class Node {
 public:
  constexpr Node() = default;  // refers to nothing; may only be assigned to
  constexpr bool is_set() const noexcept { return word_ != 0; }
  friend constexpr bool operator==(Node a, Node b) { return a.word_ == b.word_; }
  // For hash tables keyed by node.
  constexpr std::uint64_t bits() const noexcept { return word_; }

 private:
  friend class Graph;
  friend class Machine;
  // The low five bits are the tag. The remaining bits are a number, a place in the input, or a place in the arena (32
  // bits) and a count.
  enum class Tag : std::uint8_t {
    kUnset,
    kNone,
    kFalse,
    kTrue,
    kInteger,
    kReal,
    kText,
    kBytes,
    kGlobal,
    kFolded,
    // In the arena, never changed:
    kLong,        // a 64-bit integer that does not fit into a node: a word with the integer, and an unused word
    kBigInteger,  // a longer integer: its first byte in the input, and the number of bytes without bytes that repeat
                  // the sign; or kBytesFollow, the number of bytes, and the bytes
    kTuple,
    kTupleInTuple,  // (x,) where x is the tuple at the node's place: takes no memory
    kShape,         // torch.Size(x), where x is the tuple at the node's place: takes no memory
    kFrozenSet,
    kPersistent,
    // In the arena; elements, items or a state may be added later:
    kList,
    kSet,
    kDict,
    kCall,
    kInstance,
  };
  bool in_arena() const noexcept { return tag() >= Tag::kLong; }
  bool may_change() const noexcept { return tag() >= Tag::kList; }
  static constexpr std::uint64_t kBytesFollow = ~std::uint64_t{0};
  static constexpr unsigned kTagBits = 5;
  static constexpr unsigned kOffsetBits = 32;
  constexpr explicit Node(std::uint64_t word) : word_(word) {}
  static constexpr Node make(Tag tag, std::uint64_t rest = 0) {
    return Node((rest << kTagBits) | static_cast<std::uint64_t>(tag));
  }
  static constexpr Node at_place(Tag tag, std::uint64_t offset, std::uint64_t count = 0) {
    return make(tag, (count << kOffsetBits) | offset);
  }
  constexpr Tag tag() const noexcept { return static_cast<Tag>(word_ & ((1u << kTagBits) - 1)); }
  constexpr std::uint64_t rest() const noexcept { return word_ >> kTagBits; }
  constexpr std::uint32_t offset() const noexcept { return static_cast<std::uint32_t>(rest()); }
  constexpr std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(rest() >> kOffsetBits); }
  // A node with another tag and an equal place.
  constexpr Node as(Tag other) const noexcept { return make(other, rest()); }

  std::uint64_t word_ = 0;
};

}  // namespace cairn::pickle
