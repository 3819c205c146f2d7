// Node: a handle to one thing that a pickle describes, in eight bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn::pickle {

enum class Kind : std::uint8_t {
  kNone,
  kBool,
  kInteger,     // fits into 64 bits
  kBigInteger,  // does not; bytes() has it in two's complement, little endian
  kReal,
  kText,  // UTF-8 as found: not validated
  kBytes,
  kByteArray,
  kTuple,
  kFrozenSet,
  kList,
  kSet,
  kDict,        // its elements are key, value, key, value, ...
  kGlobal,      // a name: module() and name()
  kCall,        // callable(*arguments), then perhaps a state and items set on the result
  kInstance,    // the same for a class: callable.__new__(callable, *arguments)
  kPersistent,  // persistent_id(): what the container of the pickle knows by this id
  kFolded,      // what a Folder made of an instance: folded()
};

class Graph;
class Machine;

// A handle to a node of one graph, eight bytes. Comparing handles tells whether they are the same node; two equal
// strings at different places of the input are not.
class Node {
 public:
  constexpr Node() = default;  // refers to nothing; only good for being assigned to
  constexpr bool is_set() const noexcept { return word_ != 0; }
  friend constexpr bool operator==(Node a, Node b) { return a.word_ == b.word_; }
  // For hash tables keyed by node.
  constexpr std::uint64_t bits() const noexcept { return word_; }

 private:
  friend class Graph;
  friend class Machine;
  // The low five bits say what the rest is: a number; a place in the input; or a place in the arena (32 bits) and a
  // count.
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
    // In the arena, unchanging:
    kLong,        // an integer of 64 bits that does not fit into a node: a word with it, and one more
    kBigInteger,  // a longer one: where its bytes begin in the input, and how many there are without those that repeat
                  // the sign
    kTuple,
    kTupleInTuple,  // (x,) where x is the tuple that the rest says: takes no memory
    kShape,         // torch.Size(x), likewise
    kFrozenSet,
    kPersistent,
    // In the arena, and may be given more later:
    kList,
    kSet,
    kDict,
    kCall,
    kInstance,
  };
  bool in_arena() const noexcept { return tag() >= Tag::kLong; }
  bool may_change() const noexcept { return tag() >= Tag::kList; }
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
  // The same place under another name.
  constexpr Node as(Tag other) const noexcept { return make(other, rest()); }

  std::uint64_t word_ = 0;
};

}  // namespace cairn::pickle
