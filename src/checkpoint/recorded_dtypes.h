// recorded_dtypes: the dtypes that the files of a stock checkpoint give to its tensors.
//
// torch's `.metadata` has the dtypes of the plan. A planner that casts, and a cached plan, leave other dtypes in the
// files. torch loads by the files; so does Cairn. Cairn's own saves correct `.metadata`.
#pragma once

#include <cairn/checkpoint.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint_impl.h"

namespace cairn::checkpointer {

// Whether the dtypes in the metadata of the checkpoint may differ from those in its files.
bool may_have_stale_dtypes(const Checkpoint::Impl& impl);

// The dtype of the tensor in the files, if the metadata has another: of several dtypes the one that holds the elements
// of all exactly. kCorrupt if none of them does. Opens the files. A file that can't be read counts as equal: a read
// reports the error.
Result<std::optional<DType>> recorded_dtype(Checkpoint::Impl& impl, const CatalogTensor& tensor, bool follow_links);

// Gives the tensors of the catalog the dtypes in the files, and adds a warning to `impl`. `is_wanted`: of a key.
// Before another thread uses `impl`. Fails as recorded_dtype().
Result<void> take_recorded_dtypes(Checkpoint::Impl& impl, bool follow_links,
                                  const std::function<bool(std::string_view)>& is_wanted);

// The warning about the keys, of which there is at least one.
std::string stale_dtypes_warning(const std::vector<std::string>& keys);

}  // namespace cairn::checkpointer
