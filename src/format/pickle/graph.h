// Graph: the contents of a pickle as inert nodes: the values, and the calls that Python would have made.
//
// Nothing is imported or called. A Graph is immutable and safe to read from several threads. Holds views into the
// pickle's bytes, which must outlive the graph. A hostile pickle's graph may share nodes and contain cycles: a caller
// that walks the graph needs its own bound on the walk (to_value() in value_reader.h has a bound).
#pragma once

#include <cairn/result.h>

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>

#include "format/pickle/global_table.h"
#include "format/pickle/node.h"
#include "format/pickle/node_buffer.h"

namespace cairn::pickle {

// The elements of a tuple, list, set or dict, in order: a forward range. Borrows from its graph.
class Elements {
 public:
  class Iterator {
   public:
    Node operator*() const noexcept { return *at_; }
    Iterator& operator++() {
      if (++at_ == segment_end_) enter(next_);
      return *this;
    }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.at_ == b.at_; }

   private:
    friend class Elements;
    Iterator() = default;
    void enter(std::uint64_t segment) {
      if (segment == 0) {
        at_ = nullptr;
        return;
      }
      const std::uint64_t header = arena_[segment].bits();
      at_ = arena_ + segment + 1;
      segment_end_ = at_ + static_cast<std::uint32_t>(header);
      next_ = header >> 32;
    }
    const Node* at_ = nullptr;
    const Node* segment_end_ = nullptr;
    const Node* arena_ = nullptr;
    std::uint64_t next_ = 0;  // place of the next segment; 0 for none
  };

  std::size_t size() const noexcept { return count_; }
  bool empty() const noexcept { return count_ == 0; }
  Iterator begin() const {
    Iterator first;
    if (count_ == 0) return first;
    first.arena_ = arena_;
    if (run_ == nullptr && !single_.is_set()) {
      first.enter(segment_);
    } else {
      first.at_ = run_ != nullptr ? run_ : &single_;
      first.segment_end_ = first.at_ + count_;
    }
    return first;
  }
  Iterator end() const { return {}; }
  Node front() const { return *begin(); }  // requires a range that is not empty

 private:
  friend class Graph;
  Elements() = default;
  Node single_;                  // if set: the only element
  const Node* run_ = nullptr;    // otherwise, if set: all elements in one run
  const Node* arena_ = nullptr;  // otherwise: a chain of segments that starts at `segment_`
  std::uint64_t segment_ = 0;
  std::size_t count_ = 0;
};

class Graph {
 public:
  Graph(Graph&&) noexcept = default;
  Graph& operator=(Graph&&) noexcept = default;

  Node root() const noexcept { return root_; }
  // Bytes of the input up to and including STOP. The machine does not look at later bytes.
  std::size_t bytes_consumed() const noexcept { return bytes_consumed_; }
  std::span<const std::byte> input() const noexcept { return input_; }
  // Bytes of memory of the nodes.
  std::size_t memory_bytes() const noexcept { return arena_.capacity() * sizeof(Node); }

  Kind kind(Node node) const {
    const Kind known = kKinds[static_cast<std::size_t>(node.tag())];
    return known == Kind::kByteArray ? kind_in_input(node) : known;
  }
  bool is(Node node, Kind expected) const { return kind(node) == expected; }

  // Each accessor requires a node of the accessor's kind: check kind() first.
  bool boolean(Node node) const;
  std::int64_t integer(Node node) const {
    if (node.tag() == Node::Tag::kInteger) return std::bit_cast<std::int64_t>(node.bits()) >> Node::kTagBits;
    return long_integer(node);
  }
  double real(Node node) const;
  std::string_view text(Node node) const;
  std::span<const std::byte> bytes(Node node) const;  // kBytes, kByteArray, kBigInteger
  // kTuple, kFrozenSet, kList, kSet, kDict. A range must outlive its iterators.
  Elements elements(Node node) const {
    Elements range;
    range.arena_ = arena_.data();
    if (node.tag() == Node::Tag::kTupleInTuple) {
      range.single_ = node.as(Node::Tag::kTuple);
      range.count_ = 1;
    } else if (node.tag() == Node::Tag::kTuple || node.tag() == Node::Tag::kFrozenSet) {
      range.run_ = arena_.data() + node.offset();
      range.count_ = node.count();
    } else {
      range.segment_ = static_cast<std::uint32_t>(arena_[node.offset()].bits());
      range.count_ = arena_[node.offset() + 1].bits();
    }
    return range;
  }
  std::string_view module(Node node) const;                                         // kGlobal
  std::string_view name(Node node) const;                                           // kGlobal
  bool is_global(Node node, std::string_view module, std::string_view name) const;  // any kind
  // All classes and functions that the pickle names.
  std::span<const GlobalName> globals() const { return globals_.names(); }
  // Numbers from 0, for tables indexed by global. Equal names have equal numbers.
  std::size_t global_index(Node node) const;  // kGlobal
  Node callable(Node node) const;             // kCall and kInstance; a global, or any node in a hostile pickle
  Node arguments(Node node) const;            // kCall and kInstance; always a tuple
  Node state(Node node) const;                // kCall and kInstance; unset if the pickle set no state
  Node items(Node node) const;  // kCall and kInstance: the elements appended to (kList), added to (kSet) or set by key
                                // on (kDict) the result; unset if there are none
  Node persistent_id(Node node) const;                           // kPersistent
  std::uint64_t folded(Node node) const { return node.rest(); }  // kFolded

  // Whether `node` is a call or instance of a global of this name.
  bool makes(Node node, std::string_view module, std::string_view name) const;
  // If `node` is torch.Size of a tuple: the elements of the tuple.
  std::optional<std::span<const Node>> shape(Node node) const {
    if (node.tag() != Node::Tag::kShape) return std::nullopt;
    return std::span(arena_.data() + node.offset(), node.count());
  }
  // The integer, if `node` is an integer of at most 64 bits.
  std::optional<std::int64_t> integer_if(Node node) const {
    if (node.tag() == Node::Tag::kInteger || kind(node) == Kind::kInteger) return integer(node);
    return std::nullopt;
  }
  std::optional<std::string_view> text_if(Node node) const;
  // Calls `visit(key, value)`, which returns Result<void>, for each item of a kDict, up to the first error.
  template <typename Visit>
  Result<void> for_each_item(Node dict, const Visit& visit) const {
    std::optional<Node> key;
    for (const Node node : elements(dict)) {
      if (!key) {
        key = node;
        continue;
      }
      CAIRN_TRY(visit(*key, node));
      key.reset();
    }
    return {};
  }
  // The value of the text `name` in a kDict, the last one as in Python; unset if there is none. Walks through all
  // items.
  Node value_of(Node dict, std::string_view name) const;

 private:
  friend class Machine;
  Graph() = default;
  std::int64_t long_integer(Node node) const;
  Kind kind_in_input(Node node) const;

  // By tag. For a tag whose kind depends on the input: the rarer of the two kinds.
  static constexpr Kind kKinds[] = {
      Kind::kNone,  Kind::kNone,      Kind::kBool,   Kind::kBool,      Kind::kInteger,    Kind::kReal,
      Kind::kText,  Kind::kByteArray, Kind::kGlobal, Kind::kFolded,    Kind::kInteger,    Kind::kBigInteger,
      Kind::kTuple, Kind::kTuple,     Kind::kCall,   Kind::kFrozenSet, Kind::kPersistent, Kind::kList,
      Kind::kSet,   Kind::kDict,      Kind::kCall,   Kind::kInstance,
  };
  static_assert(std::size(kKinds) == static_cast<std::size_t>(Node::Tag::kInstance) + 1);

  std::span<const std::byte> input_;
  NodeBuffer arena_;
  GlobalTable globals_;
  Node shape_class_;  // the global torch.Size, if the pickle names torch.Size
  Node root_;
  std::size_t bytes_consumed_ = 0;
};

}  // namespace cairn::pickle
