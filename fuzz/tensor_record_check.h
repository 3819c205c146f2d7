// check_tensor_record: aborts if a decoder has let through a tensor whose elements do not lie in its record, or whose
// record does not lie in the input. Used by the targets that decode files of torch.save.
#pragma once

#include <cstddef>
#include <cstdlib>

#include "format/torch_file/tensor_reader.h"

namespace cairn::fuzz {

inline void check_tensor_record(const torch_file::TensorRecord& tensor, std::size_t input_bytes) {
  __extension__ using UInt128 = unsigned __int128;
  if (tensor.payload_offset > input_bytes || tensor.payload_bytes > input_bytes - tensor.payload_offset) std::abort();
  UInt128 end = tensor.storage_offset + 1;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.sizes[i] == 0) return;
    end += static_cast<UInt128>(tensor.sizes[i] - 1) * static_cast<UInt128>(tensor.strides[i]);
  }
  if (end * item_bytes(tensor.dtype) > tensor.payload_bytes) std::abort();
}

}  // namespace cairn::fuzz
