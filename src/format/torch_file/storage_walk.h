// StorageWalk: the storages that the parts of a value in a pickle's graph name: windows of plain tensors, and whole
// storages in anything else (a quantised tensor, a tensor of a subclass, a module, a bare storage).
//
// Pure and inert. One thread at a time. Looks at each part once, however many values refer to it.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/seeded_hash.h"
#include "format/pickle/graph.h"
#include "format/torch_file/tensor_node.h"

namespace cairn::torch_file {

class StorageWalk {
 public:
  struct Found {
    pickle::Node node;                   // the call that makes the tensor, or the storage
    pickle::Node id;                     // the persistent id of the storage
    std::optional<TensorNode> tensor;    // nullopt: the whole storage
    std::string_view key;                // of the storage; empty if the id has no key
    std::optional<std::uint64_t> bytes;  // of the storage; nullopt: a description that read_storage_node() refuses
  };
  using Visit = std::function<Result<void>(const Found&)>;

  // `graph` outlives the walk.
  explicit StorageWalk(const pickle::Graph& graph) : graph_(graph) {}

  // Without the parts that an earlier call has looked at. Ends with the first error of `visit`.
  Result<void> walk(pickle::Node value, const Visit& visit);

 private:
  void push(pickle::Node node);
  void push_parts(pickle::Node node);
  void push_beside(pickle::Node tensor, pickle::Node storage);

  const pickle::Graph& graph_;
  std::unordered_set<std::uint64_t, SeededHash> seen_;  // containers, calls and persistent ids
  std::vector<pickle::Node> open_;
};

}  // namespace cairn::torch_file
