// TensorNode: the description of a tensor in a torch file's pickle: a window of a named storage.
//
// Pure; never reads the storage. read_tensor_node() has checked that the window lies in `storage_bytes` bytes.
#pragma once

#include <cairn/result.h>
#include <cairn/tensor.h>

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

// As read_tensor_node(), for any node of which DCP saves a tensor: also a parameter, with or without attributes, and a
// plain tensor with attributes. The attributes are left out, as by DCP. A quantised tensor
// (torch._utils._rebuild_qtensor) has a quantised dtype, and the scales stay in the pickle.
Result<std::optional<TensorNode>> read_saved_tensor_node(const pickle::Graph& graph, pickle::Node node);

// As read_tensor_node(), and also for a plain tensor with attributes: the calls whose first own argument is the
// storage.
Result<std::optional<TensorNode>> read_window_node(const pickle::Graph& graph, pickle::Node node);

// The tensor of one rank inside a tensor of a class, or inside a parameter of such a tensor.
struct LocalTensorNode {
  pickle::Node node;  // makes the plain tensor; unset for a subclass that keeps its elements itself
  TensorNode tensor;
  std::string_view class_name;          // "DTensor"
  std::optional<Extents> global_sizes;  // of a DTensor
};
// Nullopt if `node` is neither a DTensor with a plain local tensor nor a subclass of torch.Tensor that the pickle makes
// of a storage. Errors as of read_tensor_node().
Result<std::optional<LocalTensorNode>> read_local_tensor_node(const pickle::Graph& graph, pickle::Node node);

// Whether Python makes a torch.Tensor of `node`: a tensor of any layout or subclass.
bool makes_tensor(const pickle::Graph& graph, pickle::Node node);

// The storage that a persistent id of torch.save names: ('storage', class, key, location, element count), and in files
// before torch 1.6 perhaps a view of the storage.
struct StorageNode {
  std::string_view key;  // the record is data/<key>; a view into the pickle
  std::string_view class_name;
  std::optional<DType> dtype;     // nullopt: a class that counts bytes
  std::uint64_t bytes = 0;        // of the whole storage
  std::uint64_t view_offset = 0;  // in elements
  std::uint64_t view_bytes = 0;   // the view's; of the whole storage without a view
};
// kCorrupt if `id` is not such an id. kUnsupported for a class of an unknown dtype.
Result<StorageNode> read_storage_node(const pickle::Graph& graph, pickle::Node id);

// Whether a persistent id of a legacy file names the class of a module: ('module', class, file, source). Python then
// uses the class; file and source are for a warning.
bool is_module_class(const pickle::Graph& graph, pickle::Node id);
// The node of the class. Requires is_module_class().
pickle::Node module_class(const pickle::Graph& graph, pickle::Node id);

// Whether `node` makes a torch.nn.Parameter, perhaps with attributes.
bool is_parameter_node(const pickle::Graph& graph, pickle::Node node);

// The attributes of the tensor or parameter that `node` makes, which DCP leaves out: a dict, or a tuple of a dict and a
// dict of slots. Unset without attributes.
pickle::Node attributes_node(const pickle::Graph& graph, pickle::Node node);

// If `node` makes a torch.nn.Parameter without other state: the node of the parameter's tensor, and whether the
// parameter requires a gradient.
struct ParameterNode {
  pickle::Node tensor;
  bool requires_grad = false;
};
std::optional<ParameterNode> read_parameter_node(const pickle::Graph& graph, pickle::Node node);

}  // namespace cairn::torch_file
