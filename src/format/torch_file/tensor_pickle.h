// tensor_pickle: a tensor in the pickle of a torch.save archive: a window of a storage that is a record of the archive.
#pragma once

#include <cairn/tensor.h>

#include <cstdint>
#include <string_view>

#include "format/pickle/writer.h"

namespace cairn::torch_file {

struct PickledTensor {
  DType dtype = DType::kFloat32;  // not a quantised one
  std::string_view storage_key;   // the record is data/<key>
  std::uint64_t storage_bytes = 0;
  std::uint64_t storage_offset = 0;  // in elements
  Extents sizes;
  Extents strides;  // in elements
  bool requires_grad = false;
};

// Pushes the tensor: the call of torch._utils that torch.save writes.
void write_tensor(pickle::Writer& writer, const PickledTensor& tensor);
// The two parts of the call: the function, and the tuple of its arguments.
void write_tensor_function(pickle::Writer& writer, const PickledTensor& tensor);
void write_tensor_arguments(pickle::Writer& writer, const PickledTensor& tensor);

}  // namespace cairn::torch_file
