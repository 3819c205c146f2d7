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

Error damaged(const char* what) { return Error(ErrorCode::kCorrupt, what); }

// The arguments of a call; nullopt if there are more than kArgumentsMax.
struct Arguments {
  std::array<Node, kArgumentsMax> nodes;
  std::size_t count = 0;
};

std::optional<Arguments> arguments_of(const Graph& graph, Node call) {
  Arguments arguments;
  for (const Node node : graph.elements(graph.arguments(call))) {
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
    return damaged("a tensor whose size is not a tuple");
  const pickle::Elements elements = graph.elements(node);
  if (elements.size() > kDimensionsMax) return damaged("a tensor with too many dimensions");
  Extents extents(elements.size(), 0);
  std::size_t i = 0;
  for (const Node element : elements) {
    const std::optional<std::int64_t> value = graph.integer_if(element);
    if (!value || *value < 0) return damaged("a tensor whose size or stride is not a count");
    extents[i++] = *value;
  }
  return extents;
}

bool read_bool(const Graph& graph, Node node) { return graph.is(node, Kind::kBool) && graph.boolean(node); }

// Reads a storage: ('storage', class, key, location, element count). Sets key and bytes, and the dtype if the class has
// a dtype.
Result<void> read_storage(const Graph& graph, Node node, bool dtype_follows, TensorNode& tensor) {
  if (!graph.is(node, Kind::kPersistent)) return damaged("a tensor without a storage");
  const Node id = graph.persistent_id(node);
  std::array<Node, 5> parts;
  std::size_t count = 0;
  if (!graph.is(id, Kind::kTuple)) return damaged("a storage whose description is not a tuple");
  for (const Node part : graph.elements(id)) {
    parts[count++] = part;
    if (count == parts.size()) break;  // torch before 1.12 has a sixth part, None
  }
  if (count < parts.size() || graph.text_if(parts[0]) != "storage" || !graph.is(parts[1], Kind::kGlobal)) {
    return damaged("a storage whose description is not of a storage");
  }
  const std::optional<std::string_view> key = graph.text_if(parts[2]);
  const std::optional<std::int64_t> elements = graph.integer_if(parts[4]);
  if (!key || !elements || *elements < 0) return damaged("a storage without key or element count");
  tensor.storage_key = *key;

  const std::string_view storage_class = graph.name(parts[1]);
  const std::optional<DType> dtype = dtype_of_storage_class(storage_class);
  const bool untyped = storage_class == "UntypedStorage" || storage_class == "_UntypedStorage";
  if (!dtype && !(untyped && dtype_follows)) {
    return Error(ErrorCode::kUnsupported, "a storage of an unknown class").actual(storage_class);
  }
  if (dtype) tensor.dtype = *dtype;
  const std::uint64_t element_bytes = dtype ? item_bytes(*dtype) : 1;
  const auto bytes = checked_multiply(static_cast<std::uint64_t>(*elements), element_bytes);
  if (!bytes) return damaged("a storage of more than 2^64 bytes");
  tensor.storage_bytes = *bytes;
  return {};
}

Result<DType> read_dtype(const Graph& graph, Node node) {
  if (!graph.is(node, Kind::kGlobal) || graph.module(node) != "torch") return damaged("a tensor without a dtype");
  const std::optional<DType> dtype = dtype_from_name(graph.name(node));
  if (!dtype) return Error(ErrorCode::kUnsupported, "a tensor of an unknown dtype").actual(graph.name(node));
  return *dtype;
}

// {'conj': True, 'neg': True}
Result<void> read_view_flags(const Graph& graph, Node node, TensorNode& tensor) {
  if (graph.is(node, Kind::kNone)) return {};
  constexpr std::size_t kFlagsMax = 2;
  if (!graph.is(node, Kind::kDict)) return damaged("a tensor whose flags are not a dict");
  if (graph.elements(node).size() > 2 * kFlagsMax) return damaged("a tensor with too many flags");
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

// Whether the last element reached by sizes and strides lies in the storage.
Result<void> check_window(TensorNode& tensor) {
  const auto refuse = [&](const char* what) {
    return damaged(what)
        .expected("within " + std::to_string(tensor.storage_bytes) + " bytes")
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
  if (!end_bytes || *end_bytes > tensor.storage_bytes) return refuse("a tensor that reaches beyond its storage");
  return {};
}

}  // namespace

Result<std::optional<TensorNode>> read_tensor_node(const Graph& graph, Node node) {
  const bool v3 = graph.makes(node, kUtils, "_rebuild_tensor_v3");
  if (!v3 && !graph.makes(node, kUtils, "_rebuild_tensor_v2") && !graph.makes(node, kUtils, "_rebuild_tensor")) {
    return std::optional<TensorNode>();
  }
  if (is_changed_later(graph, node)) return std::optional<TensorNode>();
  const std::optional<Arguments> arguments = arguments_of(graph, node);
  const std::size_t required = v3 ? 7 : 4;
  if (!arguments || arguments->count < required) return damaged("a tensor with too few or too many arguments");
  const auto& [nodes, count] = *arguments;
  TensorNode tensor;
  CAIRN_TRY(read_storage(graph, nodes[0], v3, tensor));
  const std::optional<std::int64_t> offset = graph.integer_if(nodes[1]);
  if (!offset || *offset < 0) return damaged("a tensor whose storage offset is not a count");
  tensor.storage_offset = static_cast<std::uint64_t>(*offset);
  CAIRN_TRY_ASSIGN(tensor.sizes, read_extents(graph, nodes[2]));
  CAIRN_TRY_ASSIGN(tensor.strides, read_extents(graph, nodes[3]));
  if (count > 4) tensor.requires_grad = read_bool(graph, nodes[4]);
  if (v3) {
    CAIRN_TRY_ASSIGN(tensor.dtype, read_dtype(graph, nodes[6]));
  }
  const std::size_t flags = v3 ? 7 : 6;
  if (count > flags) CAIRN_TRY(read_view_flags(graph, nodes[flags], tensor));
  CAIRN_TRY(check_window(tensor));
  return std::optional(std::move(tensor));
}

std::optional<ParameterNode> read_parameter_node(const Graph& graph, Node node) {
  if (!graph.makes(node, kUtils, "_rebuild_parameter") || is_changed_later(graph, node)) return std::nullopt;
  const std::optional<Arguments> arguments = arguments_of(graph, node);
  if (!arguments || arguments->count < 2) return std::nullopt;
  return ParameterNode{arguments->nodes[0], read_bool(graph, arguments->nodes[1])};
}

}  // namespace cairn::torch_file
