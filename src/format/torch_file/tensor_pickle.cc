#include "format/torch_file/tensor_pickle.h"

#include "format/torch_file/storage_class.h"

namespace cairn::torch_file {
namespace {

void write_extents(pickle::Writer& writer, const Extents& extents) {
  if (extents.size() > 3) writer.mark();
  for (const std::int64_t value : extents) writer.integer(value);
  if (extents.size() > 3) return writer.tuple_since_mark();
  writer.tuple(extents.size());
}

}  // namespace

void write_tensor(pickle::Writer& writer, const PickledTensor& tensor) {
  write_tensor_function(writer, tensor);
  write_tensor_arguments(writer, tensor);
  writer.reduce();
}

void write_tensor_function(pickle::Writer& writer, const PickledTensor& tensor) {
  const bool is_untyped = storage_class_of(tensor.dtype).untyped;
  writer.global("torch._utils", is_untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
}

void write_tensor_arguments(pickle::Writer& writer, const PickledTensor& tensor) {
  const StorageClass storage = storage_class_of(tensor.dtype);
  const std::size_t element_bytes = storage.untyped ? 1 : item_bytes(tensor.dtype);
  writer.mark();
  writer.mark();
  writer.text("storage");
  writer.global(storage.module, storage.name);
  writer.text(tensor.storage_key);
  writer.text("cpu");
  writer.integer(static_cast<std::int64_t>(tensor.storage_bytes / element_bytes));
  writer.tuple_since_mark();
  writer.persistent();
  writer.integer(static_cast<std::int64_t>(tensor.storage_offset));
  write_extents(writer, tensor.sizes);
  write_extents(writer, tensor.strides);
  writer.boolean(tensor.requires_grad);
  writer.global("collections", "OrderedDict");
  writer.empty_tuple();
  writer.reduce();
  if (storage.untyped) writer.global("torch", name_of(tensor.dtype));
  writer.tuple_since_mark();
}

}  // namespace cairn::torch_file
