// The pickle machine: turns a pickle's bytes into a Graph. Imports nothing, calls nothing and knows no class.
//
// Protocols 0 to 5: the opcodes that Python's pickler and torch write for data. Refused, by name and offset: text
// opcodes that protocol 0 alone has, extension codes, old-style instances and out-of-band buffers. Pure; no recursion;
// memory is at most some 50 bytes for each byte of input.
//
// Why the machine is fast, for metadata of half a million chunks:
// - OpcodeScan runs first. The machine then needs no bounds check for operands, and the memo keeps only the entries
//   that the pickle reads again: a pickle memoises almost every object.
// - A node is a word, which holds a number. A text stays in the input; `torch.Size((a, b))` is the tuple retagged.
// - The arena allocates only at its end. When a FoldHandler consumes an instance, the machine frees all nodes of the
//   instance by moving the arena's end back. Nothing else may then refer to words behind the new end. `pinned_` guards
//   the words: the machine moves `pinned_` up when making a reference that the stack does not show (memo, DUP), and
//   when pushing an old container from the memo, to which the pickle may add elements.
// - An object written like an earlier, folded object is recognised by a Stencil and folded without a graph.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "format/pickle/graph.h"
#include "format/pickle/stencil.h"

namespace cairn::pickle {

struct Limits {
  std::size_t input_bytes_max = std::size_t{1} << 34;
  std::size_t memory_bytes_max = std::size_t{1} << 36;
};

// Turns finished instances into a number chosen by the consumer while the pickle is being read: a graph of millions of
// equal small objects never lies in memory.
class FoldHandler {
 public:
  virtual ~FoldHandler() = default;
  // Called when a state is set on an instance of a global, if nothing else refers to the instance. Returns the number
  // for folded() (59 bits), or nullopt to keep the instance in the graph. A fold discards all nodes within `instance`
  // that lie in the arena (all but text, small numbers and globals).
  virtual std::optional<std::uint64_t> fold(const Graph& graph, Node instance) = 0;

  // Folding without a graph, for objects whose opcodes equal an earlier object's opcodes except for the holes of a
  // stencil.
  //   1. is_determined_by(): the earlier object has just been folded to `folded`. `fillings` are the small numbers and
  //      short texts in its opcodes, in order. Returns whether `fillings` determine everything in which a following
  //      object can differ from the earlier one.
  //   2. fold_like(): folds an object that differs from the earlier object only in `fillings`.
  virtual bool is_determined_by(std::uint64_t folded, std::span<const Filling> fillings) const = 0;
  virtual std::optional<std::uint64_t> fold_like(std::uint64_t folded, std::span<const Filling> fillings) = 0;
};

// Reads the pickle at the start of `input`, which must outlive the graph. Errors: kCorrupt or kUnsupported, with the
// offset.
Result<Graph> parse(std::span<const std::byte> input, const Limits& limits = {}, FoldHandler* fold_handler = nullptr);

}  // namespace cairn::pickle
