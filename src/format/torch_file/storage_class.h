// StorageClass: the class name that a torch.save pickle gives to the storage of a tensor of a dtype.
//
// Each classic dtype has its own class; newer dtypes share a class that counts bytes. Pure look-ups.
#pragma once

#include <cairn/tensor.h>

#include <optional>
#include <string_view>

namespace cairn::torch_file {

struct StorageClass {
  std::string_view module;
  std::string_view name;
  bool untyped = false;  // counts bytes; the tensor's pickle names the dtype
};

StorageClass storage_class_of(DType dtype);

// The dtype of a typed storage class of torch, such as "FloatStorage".
std::optional<DType> dtype_of_storage_class(std::string_view name);

}  // namespace cairn::torch_file
