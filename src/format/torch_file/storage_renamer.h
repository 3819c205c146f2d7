// StorageRenamer: writes the storages of a pickle's graph under new keys.
//
// One thread at a time.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <functional>
#include <utility>

#include "format/pickle/graph_writer.h"
#include "format/torch_file/tensor_node.h"

namespace cairn::torch_file {

class StorageRenamer : public pickle::PersistentWriter {
 public:
  // Returns the number that is the new key of a storage. Called for each mention of the storage.
  using NumberOf = std::function<Result<std::size_t>(const StorageNode& storage)>;
  explicit StorageRenamer(NumberOf number_of) : number_of_(std::move(number_of)) {}

  // kUnsupported for a view of a storage, as torch before 1.6 wrote it. The class of a module in a legacy file becomes
  // the class alone: an archive has no other form.
  Result<void> write_persistent(pickle::Writer& writer, const pickle::Graph& graph, pickle::Node id) override;

 private:
  NumberOf number_of_;
};

}  // namespace cairn::torch_file
