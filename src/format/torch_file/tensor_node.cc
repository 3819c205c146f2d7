#include "format/torch_file/tensor_node.h"

#include <array>
#include <span>
#include <string>

#include "core/checked.h"
#include "format/torch_file/storage_class.h"

namespace cairn::torch_file {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::Node;

constexpr std::string_view kUtils = "torch._utils";
// The arguments of a rebuild function: storage, offset, size, stride, requires_grad, hooks, dtype, metadata.
constexpr std::size_t kArgumentsMax = 8;

Error damaged_tensor(const char* what) { return Error(ErrorCode::kCorrupt, what); }

// The arguments of a call.
struct Arguments {
  std::array<Node, kArgumentsMax> nodes;
  std::size_t count = 0;
};

// Nullopt if there are more than kArgumentsMax.
std::optional<Arguments> elements_of(const Graph& graph, Node tuple) {
  Arguments arguments;
  for (const Node node : graph.elements(tuple)) {
    if (arguments.count == kArgumentsMax) return std::nullopt;
    arguments.nodes[arguments.count++] = node;
  }
  return arguments;
}

// A state or items set on the result would change the tensor that the call makes.
bool is_changed_later(const Graph& graph, Node call) {
  return graph.state(call).is_set() || graph.items(call).is_set();
}

Result<Extents> read_extents(const Graph& graph, Node node) {
  if (!graph.is(node, Kind::kTuple) && !graph.is(node, Kind::kList))
    return damaged_tensor("a tensor whose size is not a tuple");
  const pickle::Elements elements = graph.elements(node);
  if (elements.size() > kDimensionsMax) return damaged_tensor("a tensor with too many dimensions");
  Extents extents(elements.size(), 0);
  std::size_t i = 0;
  for (const Node element : elements) {
    const std::optional<std::int64_t> value = graph.integer_if(element);
    if (!value || *value < 0) return damaged_tensor("a tensor whose size or stride is not a count");
    extents[i++] = *value;
  }
  return extents;
}

bool read_bool(const Graph& graph, Node node) { return graph.is(node, Kind::kBool) && graph.boolean(node); }

// (key, offset, element count): the view of a storage, as torch before 1.6 could save one.
Result<void> read_view(const Graph& graph, Node node, std::uint64_t element_bytes, StorageNode& storage) {
  std::array<Node, 3> parts;
  if (!graph.is(node, Kind::kTuple) || graph.elements(node).size() != parts.size()) {
    return damaged_tensor("a storage whose view is not a tuple of three");
  }
  std::size_t i = 0;
  for (const Node part : graph.elements(node)) parts[i++] = part;
  const std::optional<std::int64_t> offset = graph.integer_if(parts[1]);
  const std::optional<std::int64_t> elements = graph.integer_if(parts[2]);
  if (!offset || !elements || *offset < 0 || *elements < 0)
    return damaged_tensor("a view without offset or element count");
  const auto begin = checked_multiply(static_cast<std::uint64_t>(*offset), element_bytes);
  const auto bytes = checked_multiply(static_cast<std::uint64_t>(*elements), element_bytes);
  if (!begin || !bytes || !range_within(*begin, *bytes, storage.bytes)) {
    return damaged_tensor("a view that reaches beyond its storage");
  }
  storage.view_offset = static_cast<std::uint64_t>(*offset);
  storage.view_bytes = *bytes;
  return {};
}

// Reads the storage of a tensor. Sets key and bytes, and the dtype if the storage's class has a dtype.
Result<StorageNode> read_storage(const Graph& graph, Node node, bool dtype_follows, TensorNode& tensor) {
  if (!graph.is(node, Kind::kPersistent)) return damaged_tensor("a tensor without a storage");
  CAIRN_TRY_ASSIGN(const StorageNode storage, read_storage_node(graph, graph.persistent_id(node)));
  if (!storage.dtype && !dtype_follows) {
    return Error(ErrorCode::kUnsupported, "a storage of an unknown class").actual(storage.class_name);
  }
  tensor.storage_key = storage.key;
  tensor.storage_bytes = storage.bytes;
  if (storage.dtype) tensor.dtype = *storage.dtype;
  return storage;
}

Result<DType> read_dtype(const Graph& graph, Node node) {
  if (!graph.is(node, Kind::kGlobal) || graph.module(node) != "torch")
    return damaged_tensor("a tensor without a dtype");
  const std::optional<DType> dtype = dtype_from_name(graph.name(node));
  if (!dtype) return Error(ErrorCode::kUnsupported, "a tensor of an unknown dtype").actual(graph.name(node));
  return *dtype;
}

// {'conj': True, 'neg': True}
Result<void> read_view_flags(const Graph& graph, Node node, TensorNode& tensor) {
  if (graph.is(node, Kind::kNone)) return {};
  constexpr std::size_t kFlagsMax = 2;
  if (!graph.is(node, Kind::kDict)) return damaged_tensor("a tensor whose flags are not a dict");
  if (graph.elements(node).size() > 2 * kFlagsMax) return damaged_tensor("a tensor with too many flags");
  std::optional<std::string_view> key;
  bool is_key = true;
  for (const Node element : graph.elements(node)) {
    if (is_key) {
      key = graph.text_if(element);
    } else if (key == "conj") {
      tensor.conjugate = read_bool(graph, element);
    } else if (key == "neg") {
      tensor.negative = read_bool(graph, element);
    } else {
      return Error(ErrorCode::kUnsupported, "a tensor with an unknown flag").actual(key.value_or("(no text)"));
    }
    is_key = !is_key;
  }
  return {};
}

// Whether the last element reached by sizes and strides lies in the storage, or in its view. Moves the offset from the
// view's begin to the storage's.
Result<void> check_window(const StorageNode& storage, TensorNode& tensor) {
  const auto refuse = [&](const char* what) {
    return damaged_tensor(what)
        .expected("within " + std::to_string(storage.view_bytes) + " bytes")
        .actual("sizes " + to_string(tensor.sizes) + ", strides " + to_string(tensor.strides) + ", offset " +
                std::to_string(tensor.storage_offset));
  };
  if (tensor.sizes.size() != tensor.strides.size()) return refuse("a tensor whose sizes and strides do not match");
  auto elements = element_count(tensor.sizes);
  if (!elements) return refuse("a tensor with invalid sizes");
  if (*elements == 0) {
    tensor.storage_offset = 0;  // an empty tensor needs no offset, and this offset has not been checked
    return {};
  }
  std::optional<std::uint64_t> end = checked_add<std::uint64_t>(tensor.storage_offset, 1);
  for (std::size_t i = 0; i < tensor.sizes.size() && end; ++i) {
    const auto step = checked_multiply(static_cast<std::uint64_t>(tensor.sizes[i] - 1),
                                       static_cast<std::uint64_t>(tensor.strides[i]));
    end = step ? checked_add(*end, *step) : std::nullopt;
  }
  const auto end_bytes = end ? checked_multiply(*end, tensor.element_bytes()) : std::nullopt;
  if (!end_bytes || *end_bytes > storage.view_bytes) return refuse("a tensor that reaches beyond its storage");
  tensor.storage_offset += storage.view_offset;  // no overflow: the view lies in the storage
  return {};
}

// The tensor that the function `callable` of torch._utils makes of the tuple `argument_tuple`.
Result<std::optional<TensorNode>> read_call(const Graph& graph, Node callable, Node argument_tuple) {
  const bool v3 = graph.is_global(callable, kUtils, "_rebuild_tensor_v3");
  const bool quantised = graph.is_global(callable, kUtils, "_rebuild_qtensor");
  if (!v3 && !quantised && !graph.is_global(callable, kUtils, "_rebuild_tensor_v2") &&
      !graph.is_global(callable, kUtils, "_rebuild_tensor")) {
    return std::optional<TensorNode>();
  }
  const std::optional<Arguments> arguments = elements_of(graph, argument_tuple);
  const std::size_t required = v3 || quantised ? 7 : 4;
  if (!arguments || arguments->count < required) return damaged_tensor("a tensor with too few or too many arguments");
  const auto& [nodes, count] = *arguments;
  TensorNode tensor;
  CAIRN_TRY_ASSIGN(const StorageNode storage, read_storage(graph, nodes[0], v3, tensor));
  const std::optional<std::int64_t> offset = graph.integer_if(nodes[1]);
  if (!offset || *offset < 0) return damaged_tensor("a tensor whose storage offset is not a count");
  tensor.storage_offset = static_cast<std::uint64_t>(*offset);
  CAIRN_TRY_ASSIGN(tensor.sizes, read_extents(graph, nodes[2]));
  CAIRN_TRY_ASSIGN(tensor.strides, read_extents(graph, nodes[3]));
  if (count > 4) tensor.requires_grad = read_bool(graph, nodes[quantised ? 5 : 4]);
  if (v3) {
    CAIRN_TRY_ASSIGN(tensor.dtype, read_dtype(graph, nodes[6]));
  }
  const std::size_t flags = v3 ? 7 : 6;
  if (count > flags && !quantised) CAIRN_TRY(read_view_flags(graph, nodes[flags], tensor));
  CAIRN_TRY(check_window(storage, tensor));
  return std::optional(std::move(tensor));
}

}  // namespace

Result<StorageNode> read_storage_node(const Graph& graph, Node id) {
  constexpr std::size_t kRequired = 5;
  std::array<Node, kRequired + 1> parts;  // torch before 1.6 adds a sixth part: a view, or None
  std::size_t count = 0;
  if (!graph.is(id, Kind::kTuple)) return damaged_tensor("a storage whose description is not a tuple");
  for (const Node part : graph.elements(id)) {
    parts[count++] = part;
    if (count == parts.size()) break;
  }
  if (count < kRequired || graph.text_if(parts[0]) != "storage" || !graph.is(parts[1], Kind::kGlobal)) {
    return damaged_tensor("a storage whose description is not of a storage");
  }
  const std::optional<std::string_view> key = graph.text_if(parts[2]);
  const std::optional<std::int64_t> elements = graph.integer_if(parts[4]);
  if (!key || !elements || *elements < 0) return damaged_tensor("a storage without key or element count");
  StorageNode storage;
  storage.key = *key;
  storage.class_name = graph.name(parts[1]);
  storage.dtype = dtype_of_storage_class(storage.class_name);
  if (!storage.dtype && storage.class_name != "UntypedStorage" && storage.class_name != "_UntypedStorage") {
    return Error(ErrorCode::kUnsupported, "a storage of an unknown class").actual(storage.class_name);
  }
  const std::uint64_t element_bytes = storage.dtype ? item_bytes(*storage.dtype) : 1;
  const auto bytes = checked_multiply(static_cast<std::uint64_t>(*elements), element_bytes);
  if (!bytes) return damaged_tensor("a storage of more than 2^64 bytes");
  storage.bytes = *bytes;
  storage.view_bytes = *bytes;
  if (count > kRequired && !graph.is(parts[kRequired], Kind::kNone)) {
    CAIRN_TRY(read_view(graph, parts[kRequired], element_bytes, storage));
  }
  return storage;
}

Result<std::optional<TensorNode>> read_tensor_node(const Graph& graph, Node node) {
  if (graph.makes(node, kUtils, "_rebuild_qtensor")) return std::optional<TensorNode>();
  if (!graph.is(node, Kind::kCall) && !graph.is(node, Kind::kInstance)) return std::optional<TensorNode>();
  if (is_changed_later(graph, node)) return std::optional<TensorNode>();
  return read_call(graph, graph.callable(node), graph.arguments(node));
}

Result<std::optional<TensorNode>> read_window_node(const Graph& graph, Node node) {
  if (!graph.is(node, Kind::kCall) || is_changed_later(graph, node)) return std::optional<TensorNode>();
  if (!graph.is_global(graph.callable(node), "torch._tensor", "_rebuild_from_type_v2")) {
    return read_tensor_node(graph, node);
  }
  CAIRN_TRY_ASSIGN(std::optional<TensorNode> tensor, read_saved_tensor_node(graph, node));
  if (tensor && is_quantized(tensor->dtype)) return std::optional<TensorNode>();
  return tensor;
}

bool is_module_class(const Graph& graph, Node id) {
  if (!graph.is(id, Kind::kTuple) || graph.elements(id).size() < 2) return false;
  return graph.text_if(graph.elements(id).front()) == "module" && graph.is(module_class(graph, id), Kind::kGlobal);
}

Node module_class(const Graph& graph, Node id) { return *++graph.elements(id).begin(); }

Result<std::optional<TensorNode>> read_saved_tensor_node(const Graph& graph, Node node) {
  if (!graph.is(node, Kind::kCall) || is_changed_later(graph, node)) return std::optional<TensorNode>();
  const Node callable = graph.callable(node);
  const std::optional<Arguments> arguments = elements_of(graph, graph.arguments(node));
  // A parameter: (tensor, requires_grad, hooks), perhaps with a state behind.
  if (is_parameter_node(graph, node) && arguments && arguments->count >= 2) {
    CAIRN_TRY_ASSIGN(std::optional<TensorNode> tensor, read_tensor_node(graph, arguments->nodes[0]));
    if (tensor) tensor->requires_grad = read_bool(graph, arguments->nodes[1]);
    return tensor;
  }
  // A tensor with attributes: (function, class, arguments of the function, state).
  if (graph.is_global(callable, "torch._tensor", "_rebuild_from_type_v2") && arguments && arguments->count >= 3) {
    if (!graph.is_global(arguments->nodes[1], "torch", "Tensor")) return std::optional<TensorNode>();
    if (!graph.is(arguments->nodes[2], Kind::kTuple)) return std::optional<TensorNode>();
    return read_call(graph, arguments->nodes[0], arguments->nodes[2]);
  }
  return read_call(graph, callable, graph.arguments(node));
}

namespace {

// The last value under `name` in a dict; unset if there is none, and for a dict with more entries than the attributes
// of a DTensor: many tensors may share one dict.
Node value_in(const Graph& graph, Node dict, std::string_view name) {
  constexpr std::size_t kAttributesMax = 32;
  if (!graph.is(dict, Kind::kDict) || graph.elements(dict).size() > 2 * kAttributesMax) return Node();
  return graph.value_of(dict, name);
}

// The value of an attribute in the state of an object: a dict, or a tuple of a dict and a dict of slots, of which one
// may be None.
Node attribute_of(const Graph& graph, Node state, std::string_view name) {
  if (!graph.is(state, Kind::kTuple)) return value_in(graph, state, name);
  constexpr std::size_t kPartsMax = 2;
  if (graph.elements(state).size() > kPartsMax) return Node();
  Node found;
  for (const Node part : graph.elements(state)) {
    if (const Node value = value_in(graph, part, name); value.is_set()) found = value;
  }
  return found;
}

// The size that torch._utils._rebuild_wrapper_subclass gets: its third argument.
Result<std::optional<Extents>> wrapper_sizes(const Graph& graph, Node argument_tuple) {
  constexpr std::size_t kSizePlace = 2;
  if (!graph.is(argument_tuple, Kind::kTuple)) return std::optional<Extents>();
  std::size_t place = 0;
  for (const Node argument : graph.elements(argument_tuple)) {
    if (place++ != kSizePlace) continue;
    const auto shape = graph.shape(argument);
    CAIRN_TRY_ASSIGN(Extents sizes, read_extents(graph, shape ? graph.arguments(argument) : argument));
    return std::optional(std::move(sizes));
  }
  return std::optional<Extents>();
}

}  // namespace

Result<std::optional<LocalTensorNode>> read_local_tensor_node(const Graph& graph, Node node) {
  using Maybe = std::optional<LocalTensorNode>;
  if (const std::optional<ParameterNode> parameter = read_parameter_node(graph, node)) node = parameter->tensor;
  if (!graph.is(node, Kind::kCall) || is_changed_later(graph, node)) return Maybe();
  if (!graph.is_global(graph.callable(node), "torch._tensor", "_rebuild_from_type_v2")) return Maybe();
  constexpr std::size_t kArguments = 4;  // function, class, arguments of the function, state
  const std::optional<Arguments> arguments = elements_of(graph, graph.arguments(node));
  if (!arguments || arguments->count != kArguments) return Maybe();
  const auto& [nodes, count] = *arguments;
  if (!graph.is(nodes[1], Kind::kGlobal)) return Maybe();
  LocalTensorNode local;
  local.class_name = graph.name(nodes[1]);
  const bool is_dtensor = local.class_name == "DTensor" && graph.module(nodes[1]).starts_with("torch.distributed.");
  if (!is_dtensor) {
    // Attributes of a subclass may change the meaning of the elements: a scale, for example.
    const bool has_state =
        !graph.is(nodes[3], Kind::kNone) && !(graph.is(nodes[3], Kind::kDict) && graph.elements(nodes[3]).size() == 0);
    if (has_state || !graph.is(nodes[2], Kind::kTuple)) return Maybe();
    CAIRN_TRY_ASSIGN(std::optional<TensorNode> tensor, read_call(graph, nodes[0], nodes[2]));
    if (!tensor) return Maybe();
    local.tensor = *std::move(tensor);
    return Maybe(std::move(local));
  }
  local.node = attribute_of(graph, nodes[3], "_local_tensor");
  if (!local.node.is_set()) return Maybe();
  CAIRN_TRY_ASSIGN(std::optional<TensorNode> tensor, read_saved_tensor_node(graph, local.node));
  if (!tensor) return Maybe();
  local.tensor = *std::move(tensor);
  if (graph.is_global(nodes[0], kUtils, "_rebuild_wrapper_subclass")) {
    CAIRN_TRY_ASSIGN(local.global_sizes, wrapper_sizes(graph, nodes[2]));
  }
  return Maybe(std::move(local));
}

bool makes_tensor(const Graph& graph, Node node) {
  if (!graph.is(node, Kind::kCall)) return false;
  const Node callable = graph.callable(node);
  if (!graph.is(callable, Kind::kGlobal)) return false;
  const std::string_view module = graph.module(callable);
  const std::string_view name = graph.name(callable);
  if (module == "torch._tensor") return name == "_rebuild_from_type_v2" || name == "_rebuild_from_type";
  return module == kUtils && name.starts_with("_rebuild_");
}

bool is_parameter_node(const Graph& graph, Node node) {
  if (!graph.is(node, Kind::kCall)) return false;
  const Node callable = graph.callable(node);
  return graph.is_global(callable, kUtils, "_rebuild_parameter") ||
         graph.is_global(callable, kUtils, "_rebuild_parameter_with_state");
}

Node attributes_node(const Graph& graph, Node node) {
  constexpr std::size_t kStatePlace = 3;  // of both calls
  if (!graph.is(node, Kind::kCall)) return Node();
  const Node callable = graph.callable(node);
  const bool may_have_state = graph.is_global(callable, kUtils, "_rebuild_parameter_with_state") ||
                              graph.is_global(callable, "torch._tensor", "_rebuild_from_type_v2");
  if (!may_have_state) return Node();
  const std::optional<Arguments> arguments = elements_of(graph, graph.arguments(node));
  return arguments && arguments->count > kStatePlace ? arguments->nodes[kStatePlace] : Node();
}

std::optional<ParameterNode> read_parameter_node(const Graph& graph, Node node) {
  if (!graph.makes(node, kUtils, "_rebuild_parameter") || is_changed_later(graph, node)) return std::nullopt;
  const std::optional<Arguments> arguments = elements_of(graph, graph.arguments(node));
  if (!arguments || arguments->count < 2) return std::nullopt;
  return ParameterNode{arguments->nodes[0], read_bool(graph, arguments->nodes[1])};
}

}  // namespace cairn::torch_file
