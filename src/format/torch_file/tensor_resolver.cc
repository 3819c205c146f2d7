#include "format/torch_file/tensor_resolver.h"

#include <span>
#include <utility>

#include "core/checked.h"
#include "core/region.h"
#include "core/stored_elements.h"

namespace cairn::torch_file {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::Node;

// Of an Object with two arguments.
constexpr std::uint64_t kCallBytes = sizeof(Object) + 2 * sizeof(Value) + 64;

// The elements from the tensor's first to its last; the tensor has elements.
std::uint64_t window_elements(const TensorNode& tensor) {
  std::uint64_t elements = 1;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    elements += static_cast<std::uint64_t>(tensor.sizes[i] - 1) * static_cast<std::uint64_t>(tensor.strides[i]);
  }
  return elements;
}

}  // namespace

Result<std::optional<Value>> StorageDescriber::resolve(const Graph& graph, Node node, ByteBudget& budget) {
  if (!graph.is(node, Kind::kPersistent)) return std::optional<Value>();
  CAIRN_TRY(budget.charge(kCallBytes));
  auto object = std::make_unique<Object>();
  object->module = "torch.storage";
  object->name = "_load_storage";
  CAIRN_TRY_ASSIGN(Value id, pickle::to_value(graph, graph.persistent_id(node), budget));
  object->arguments = Tuple{{std::move(id)}};
  return std::optional<Value>(std::move(object));
}

Result<std::optional<Value>> TensorResolver::resolve(const Graph& graph, Node node, ByteBudget& budget) {
  if (graph.is(node, Kind::kPersistent)) {
    CAIRN_TRY_ASSIGN(Value storage, read_storage(graph, graph.persistent_id(node), budget));
    return std::optional(std::move(storage));
  }
  CAIRN_TRY_ASSIGN(const std::optional<TensorNode> tensor, read_tensor_node(graph, node));
  if (!tensor || is_quantized(tensor->dtype)) return std::optional<Value>();
  CAIRN_TRY_ASSIGN(Array array, read_tensor(*tensor, budget));
  if (!tensor->requires_grad) return std::optional<Value>(std::move(array));
  CAIRN_TRY(budget.charge(kCallBytes));
  // An Array has no requires_grad. The Object keeps the flag: a resumed training must not lose requires_grad silently.
  const Node callable = graph.callable(node);
  auto object = std::make_unique<Object>();
  object->module = graph.module(callable);
  object->name = graph.name(callable);
  object->arguments = Tuple{{Value(std::move(array)), Value(true)}};
  return std::optional<Value>(std::move(object));
}

Result<Value> TensorResolver::read_storage(const Graph& graph, Node id, ByteBudget& budget) {
  if (is_module_class(graph, id)) return pickle::to_value(graph, module_class(graph, id), budget);
  CAIRN_TRY_ASSIGN(const StorageNode storage, read_storage_node(graph, id));
  CAIRN_TRY(budget.charge(kCallBytes + heap_bytes(storage.class_name.size())));
  const bool is_whole = storage.view_bytes == storage.bytes;
  SharedArray bytes = is_whole ? named_[storage.key] : nullptr;
  if (bytes == nullptr) {
    CAIRN_TRY_ASSIGN(bytes, opaque_.read(storage, budget));
    if (is_whole) named_[storage.key] = bytes;
  }
  auto object = std::make_unique<Object>();
  object->module = "torch.storage";
  object->name = "_load_storage";
  object->arguments = Tuple{{Value(storage.class_name), Value(std::move(bytes))}};
  return Value(std::move(object));
}

Result<Array> TensorResolver::read_tensor(const TensorNode& tensor, ByteBudget& budget) {
  Array array;
  array.kind = Array::Kind::kTensor;
  array.dtype = tensor.dtype;
  array.shape = tensor.sizes;
  CAIRN_TRY_ASSIGN(const std::int64_t elements, element_count(tensor.sizes));
  const auto bytes = checked_multiply(static_cast<std::uint64_t>(elements), tensor.element_bytes());
  const std::uint64_t beside = sizeof(Array) + tensor.sizes.size() * sizeof(std::int64_t);
  if (auto charged = budget.charge(checked_add(bytes.value_or(UINT64_MAX), beside).value_or(UINT64_MAX)); !charged) {
    return std::move(charged).error().while_doing("reading a tensor of " + to_string(tensor.sizes) + " " +
                                                  std::string(name_of(tensor.dtype)));
  }
  CAIRN_TRY_ASSIGN(const StoragePlace place, storages_.find(tensor.storage_key));
  CAIRN_TRY(check_storage_bytes(tensor.storage_key, tensor.storage_bytes, place.bytes));
  if (*bytes == 0) return array;
  array.data.resize(*bytes);
  const std::span<std::byte> out = std::as_writable_bytes(std::span(array.data));
  if (tensor.strides == row_major_strides(tensor.sizes)) {
    CAIRN_TRY(storages_.read(tensor.storage_key, tensor.storage_offset * tensor.element_bytes(), out));
  } else {
    CAIRN_TRY_ASSIGN(const std::span<const std::byte> window, read_window(tensor));
    const Region region(tensor.sizes, row_major_strides(tensor.sizes), tensor.strides);
    gather(region, tensor.element_bytes(), window.data(), 0, out);
  }
  if (big_endian_) swap_bytes(tensor.dtype, out);
  if (tensor.conjugate) negate_imaginary(tensor.dtype, out);
  if (tensor.negative) negate(tensor.dtype, out);
  return array;
}

// The bytes from the tensor's first element to its last. Reads of one storage take at most twice its bytes, however
// many windows with gaps the value has.
Result<std::span<const std::byte>> TensorResolver::read_window(const TensorNode& tensor) {
  const std::uint64_t begin = tensor.storage_offset * tensor.element_bytes();
  const std::uint64_t length = window_elements(tensor) * tensor.element_bytes();
  Used& used = used_[tensor.storage_key];
  used.window_bytes = checked_add(used.window_bytes, length).value_or(UINT64_MAX);
  if (used.whole.empty() && used.window_bytes > tensor.storage_bytes) {
    CAIRN_TRY_ASSIGN(used.whole, storages_.read_whole(tensor.storage_key));
  }
  if (!used.whole.empty()) return std::span<const std::byte>(used.whole).subspan(begin, length);
  window_.resize(length);
  CAIRN_TRY(storages_.read(tensor.storage_key, begin, window_));
  return std::span<const std::byte>(window_);
}

}  // namespace cairn::torch_file
