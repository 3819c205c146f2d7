// Resolvers of the tensors in a torch file's pickle: a copy of each tensor's elements, or a description of each
// storage.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/seeded_hash.h"
#include "format/pickle/value_reader.h"
#include "format/torch_file/checked_storages.h"
#include "format/torch_file/opaque_storages.h"
#include "format/torch_file/tensor_node.h"

namespace cairn::torch_file {

// Describes storages by their persistent ids: an Object of the class torch.storage._load_storage.
class StorageDescriber final : public pickle::Resolver {
 public:
  Result<std::optional<Value>> resolve(const pickle::Graph& graph, pickle::Node node, ByteBudget& budget) override;
};

// Makes each tensor a row-major copy of its window. Views may share a storage, and an expanded tensor repeats elements:
// the budget is charged for each copy. A storage that anything else names is an Object of the class
// torch.storage._load_storage with the name of the storage's class and all bytes of the storage (a SharedArray): record
// name and device are left out, and equal storages under other names are equal. The class of a module in a legacy file
// is the class alone, as in an archive.
class TensorResolver final : public pickle::Resolver {
 public:
  // `storages` and `opaque` outlive the resolver.
  TensorResolver(const CheckedStorages& storages, const OpaqueStorages& opaque, bool big_endian)
      : storages_(storages), opaque_(opaque), big_endian_(big_endian) {}

  Result<std::optional<Value>> resolve(const pickle::Graph& graph, pickle::Node node, ByteBudget& budget) override;

 private:
  // A storage of which the value has tensors.
  struct Used {
    std::uint64_t window_bytes = 0;  // of all windows so far
    std::vector<std::byte> whole;    // the whole storage, once the windows have more bytes than the storage
  };
  Result<Value> read_storage(const pickle::Graph& graph, pickle::Node id, ByteBudget& budget);
  Result<Array> read_tensor(const TensorNode& tensor, ByteBudget& budget);
  Result<std::span<const std::byte>> read_window(const TensorNode& tensor);

  const CheckedStorages& storages_;
  const OpaqueStorages& opaque_;
  bool big_endian_;
  std::unordered_map<std::string_view, Used, SeededHash> used_;  // by keys in the pickle
  std::vector<std::byte> window_;                                // the last one read
  // The storages that the value has named: another mention takes no more bytes.
  std::unordered_map<std::string_view, SharedArray, SeededHash> named_;
};

}  // namespace cairn::torch_file
