// TensorNode: the description of a tensor in a torch file's pickle: a window of a named storage.
//
// Pure; never reads the storage. read_tensor_node() has checked that the window lies in `storage_bytes` bytes.
#pragma once

#include <cairn/box.h>
#include <cairn/dtype.h>
#include <cairn/result.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "format/pickle/graph.h"

namespace cairn::torch_file {

struct TensorNode {
  std::string_view storage_key;     // the record is data/<key>; a view into the pickle
  std::uint64_t storage_bytes = 0;  // the record must have this size
  DType dtype = DType::kFloat32;
  Extents sizes;
  Extents strides;                   // in elements
  std::uint64_t storage_offset = 0;  // in elements
  bool conjugate = false;
  bool negative = false;
  bool requires_grad = false;

  std::uint64_t element_bytes() const { return item_bytes(dtype); }
};

// Nullopt if `node` is not a call that makes a plain strided tensor (torch._utils._rebuild_tensor, _v2 or _v3), and if
// the pickle sets a state or items on the tensor: torch applies a state to the tensor, and may replace its elements.
// kCorrupt if the call's arguments are invalid: impossible sizes, or a window that does not lie in its storage.
Result<std::optional<TensorNode>> read_tensor_node(const pickle::Graph& graph, pickle::Node node);

// If `node` makes a torch.nn.Parameter without further state: the node of the parameter's tensor, and whether the
// parameter requires a gradient.
struct ParameterNode {
  pickle::Node tensor;
  bool requires_grad = false;
};
std::optional<ParameterNode> read_parameter_node(const pickle::Graph& graph, pickle::Node node);

}  // namespace cairn::torch_file
