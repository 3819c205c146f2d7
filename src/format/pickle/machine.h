// The pickle machine: bytes to Graph. It imports nothing, calls nothing and knows no class.
//
// Protocols 0 to 5; the opcodes that Python's pickler and torch write for data, except text opcodes of protocol 0,
// extension codes, old-style instances and out-of-band buffers, which it refuses by name and offset. Pure; no
// recursion; memory is at most some 50 bytes for each byte of input.
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

// Turns finished instances into a number of the consumer's while the pickle is being read, so that a graph of millions
// of equal small objects never lies in memory.
class Folder {
 public:
  virtual ~Folder() = default;
  // Called when a state is set on an instance of a global that nothing else refers to. Returns what folded() shall give
  // (59 bits), or nullopt to leave the instance as it is. Nodes within `instance` that lie in the arena (not text,
  // small numbers or globals) are gone after a fold.
  virtual std::optional<std::uint64_t> fold(const Graph& graph, Node instance) = 0;

  // The same without a graph, for objects that are written like an earlier one. First it is asked whether `fillings`,
  // the small numbers and short texts in the opcodes of the object that it just folded to `folded`, in their order,
  // tell all that makes the object another one than the next; then, for objects that differ from it in nothing else,
  // for the fold.
  virtual bool is_told_by(std::uint64_t folded, std::span<const Filling> fillings) const = 0;
  virtual std::optional<std::uint64_t> fold_like(std::uint64_t folded, std::span<const Filling> fillings) = 0;
};

// Reads the pickle at the start of `input`, which must outlive the graph. kCorrupt or kUnsupported with the offset.
Result<Graph> parse(std::span<const std::byte> input, const Limits& limits = {}, Folder* folder = nullptr);

}  // namespace cairn::pickle
