// A pass over a tensor in windows of a few MiB, on several threads.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/options.h>
#include <cairn/result.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>

#include "plan/flat_range.h"
#include "storage/watched_call.h"

namespace cairn::checkpointer {

// Opens the checkpoint of a watched call; the calls into the storage are the watch's.
Result<Checkpoint> open_source(const std::filesystem::path& directory, const storage::Watch& watch);

// The tensor under `key`, for a pass over all of its elements. kMissingKey with near keys; kUnsafe for a tensor that
// repeats few elements too often (ExpansionLimit).
Result<CatalogTensor> require_tensor(const Checkpoint& checkpoint, std::string_view key);

// Elements in row-major order, in the tensor's dtype. `index` counts the windows from 0 in that order.
struct TensorWindow {
  std::size_t index;
  plan::FlatRange range;
  std::span<const std::byte> bytes;
};

// Of a tensor of require_tensor(). Calls `visit` once for each window, from several threads and in any order. Success
// means that all bytes were checked: the caller believes no window before. Memory: 8 MiB per thread.
Result<void> for_each_window(const Checkpoint& checkpoint, const CatalogTensor& tensor,
                             const TensorPassOptions& options, storage::Watch& watch,
                             const std::function<Result<void>(const TensorWindow&)>& visit);

}  // namespace cairn::checkpointer
