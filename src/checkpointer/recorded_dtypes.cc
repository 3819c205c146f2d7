#include "checkpointer/recorded_dtypes.h"

#include "checkpointer/listed_keys.h"

namespace cairn::checkpointer {

bool may_have_stale_dtypes(const Checkpoint::Impl& impl) {
  return impl.catalog.format == CheckpointFormat::kDcp && !impl.record;
}

std::optional<DType> recorded_dtype(Checkpoint::Impl& impl, const CatalogTensor& tensor, bool follow_links) {
  if (!may_have_stale_dtypes(impl)) return std::nullopt;
  std::optional<DType> widest;
  for (std::size_t chunk = 0; chunk < tensor.chunk_count(); ++chunk) {
    const auto file = impl.file_of(tensor.locations[chunk], tensor.fqn, follow_links);
    if (!file) return std::nullopt;
    const Result<StoredTensor> stored = (*file)->tensor(tensor, chunk);
    if (!stored) return std::nullopt;
    if (!widest || item_bytes(stored->dtype) > item_bytes(*widest)) widest = stored->dtype;
  }
  return widest == tensor.dtype ? std::nullopt : widest;
}

void take_recorded_dtypes(Checkpoint::Impl& impl, bool follow_links,
                          const std::function<bool(std::string_view)>& is_wanted) {
  if (!may_have_stale_dtypes(impl)) return;
  std::vector<std::string> stale;
  for (CatalogTensor& tensor : impl.catalog.tensors) {
    if (!is_wanted(tensor.fqn)) continue;
    const std::optional<DType> dtype = recorded_dtype(impl, tensor, follow_links);
    if (!dtype) continue;
    tensor.dtype = *dtype;
    stale.push_back(tensor.fqn);
  }
  if (!stale.empty()) impl.warnings.push_back(stale_dtypes_warning(stale));
}

std::string stale_dtypes_warning(const std::vector<std::string>& keys) {
  const std::string count = keys.size() == 1 ? "a tensor has" : std::to_string(keys.size()) + " tensors have";
  return count +
         " another dtype in the files than in the metadata, which torch wrote by a planner that casts or by a cached "
         "plan; the files count: " +
         listed_keys(keys);
}

}  // namespace cairn::checkpointer
