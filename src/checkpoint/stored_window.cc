#include "checkpoint/stored_window.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace cairn::checkpointer {

StoredWindow window_of(const StoredTensor& tensor) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> dimensions;  // stride and size, of more than one element
  StoredWindow window{tensor.first_element, tensor.first_element + 1, true};
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.sizes[i] <= 1) continue;
    const auto stride = static_cast<std::uint64_t>(tensor.strides[i]);
    const auto size = static_cast<std::uint64_t>(tensor.sizes[i]);
    dimensions.emplace_back(stride, size);
    window.end += stride * (size - 1);
  }
  std::sort(dimensions.begin(), dimensions.end());
  std::uint64_t covered = 1;  // elements without a gap
  for (const auto& [stride, size] : dimensions) {
    if (stride > covered) window.is_dense = false;
    covered += stride * (size - 1);
  }
  return window;
}

}  // namespace cairn::checkpointer
