// StoredWindow: the elements of a record from a tensor's first element to its last.
//
// Pure.
#pragma once

#include <cstdint>

#include "core/stored_tensor.h"

namespace cairn::checkpointer {

// In elements of the tensor's dtype, from the record's first byte.
struct StoredWindow {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool is_dense = false;  // whether each element of the window belongs to the tensor
};

// `tensor` has elements, and lies within its record.
StoredWindow window_of(const StoredTensor& tensor);

}  // namespace cairn::checkpointer
