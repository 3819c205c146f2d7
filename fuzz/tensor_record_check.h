// check_tensor_record: aborts if a decoder has let through a tensor whose elements do not lie in its record, or whose
// record does not lie in the input. Used by the targets that decode files of torch.save.
#pragma once

#include <cstddef>
#include <cstdlib>

#include "format/torch_file/tensor_reader.h"

namespace cairn::fuzz {

inline void check_tensor_record(const StoredTensor& tensor, std::size_t input_bytes) {
  __extension__ using UInt128 = unsigned __int128;
  if (tensor.record_offset > input_bytes || tensor.record_bytes > input_bytes - tensor.record_offset) std::abort();
  UInt128 end = tensor.first_element + 1;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.sizes[i] == 0) return;
    end += static_cast<UInt128>(tensor.sizes[i] - 1) * static_cast<UInt128>(tensor.strides[i]);
  }
  if (end * item_bytes(tensor.dtype) > tensor.record_bytes) std::abort();
}

}  // namespace cairn::fuzz
