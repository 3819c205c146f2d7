#include "core/stored_tensor.h"

namespace cairn {

bool StoredTensor::contiguous() const {
  std::int64_t expected = 1;
  bool row_major = true;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 0) return true;
    row_major = row_major && (sizes[i] == 1 || strides[i] == expected);
    expected *= sizes[i];  // no overflow: the window lies in the record
  }
  return row_major;
}

}  // namespace cairn
