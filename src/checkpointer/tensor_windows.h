// A pass over a tensor in windows of a few MiB, on several threads.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/result.h>
#include <cairn/tensor_pass.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>

#include "plan/flat_range.h"

namespace cairn::checkpointer {

// The tensor under `key`, or kMissingKey with near keys.
Result<const CatalogTensor*> require_tensor(const Checkpoint& checkpoint, std::string_view key);

// Elements in row-major order, in the tensor's dtype. `index` counts the windows from 0 in that order.
struct TensorWindow {
  std::size_t index;
  plan::FlatRange range;
  std::span<const std::byte> bytes;
};

// Calls `visit` once for each window, from several threads and in any order. Memory: 8 MiB per thread.
Result<void> for_each_window(const Checkpoint& checkpoint, const CatalogTensor& tensor,
                             const TensorPassOptions& options,
                             const std::function<Result<void>(const TensorWindow&)>& visit);

}  // namespace cairn::checkpointer
