// Resolvers of the tensors in a torch file's pickle: a copy of each tensor's elements, or a description of each
// storage.
#pragma once

#include <cairn/result.h>
#include <cairn/seeded_hash.h>
#include <cairn/value.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/pickle/value_reader.h"
#include "format/torch_file/tensor_node.h"

namespace cairn::torch_file {

// The name of a storage's record in a torch.save archive.
inline std::string storage_record_name(std::string_view key) { return "data/" + std::string(key); }

// Describes storages by their persistent ids: an Object of the class torch.storage._load_storage.
class StorageDescriber final : public pickle::Resolver {
 public:
  Result<std::optional<Value>> resolve(const pickle::Graph& graph, pickle::Node node, ByteBudget& budget) override;
};

// Makes each tensor a row-major copy of its window. Views may share a storage, and an expanded tensor repeats elements:
// the budget is charged for each copy.
class TensorResolver final : public pickle::Resolver {
 public:
  // Reads and checks the whole storage of a key.
  using ReadStorage = std::function<Result<std::vector<std::byte>>(std::string_view key)>;
  TensorResolver(ReadStorage read_storage, bool big_endian)
      : read_storage_(std::move(read_storage)), big_endian_(big_endian) {}

  Result<std::optional<Value>> resolve(const pickle::Graph& graph, pickle::Node node, ByteBudget& budget) override;

 private:
  Result<Array> read_tensor(const TensorNode& tensor, ByteBudget& budget);
  Result<const std::vector<std::byte>*> storage_of(const TensorNode& tensor);

  ReadStorage read_storage_;
  bool big_endian_;
  std::unordered_map<std::string_view, std::vector<std::byte>, SeededHash> storages_;  // by keys in the pickle
};

}  // namespace cairn::torch_file
