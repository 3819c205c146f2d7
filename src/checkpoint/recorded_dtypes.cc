#include "checkpoint/recorded_dtypes.h"

#include "checkpoint/listed_keys.h"

namespace cairn::checkpointer {
namespace {

// Whether every element of dtype `narrow` is an element of dtype `wide`.
bool holds_exactly(DType wide, DType narrow) {
  if (wide == narrow) return true;
  const bool is_half = narrow == DType::kFloat16 || narrow == DType::kBFloat16;
  if (wide == DType::kFloat32) return is_half;
  return wide == DType::kFloat64 && (is_half || narrow == DType::kFloat32);
}

}  // namespace

bool may_have_stale_dtypes(const Checkpoint::Impl& impl) {
  return impl.catalog.format == CheckpointFormat::kDcp && !impl.record;
}

Result<std::optional<DType>> recorded_dtype(Checkpoint::Impl& impl, const CatalogTensor& tensor, bool follow_links) {
  if (!may_have_stale_dtypes(impl)) return std::optional<DType>();
  std::optional<DType> widest;
  for (std::size_t chunk = 0; chunk < tensor.chunk_count(); ++chunk) {
    const auto file = impl.file_of(tensor.locations[chunk], tensor.fqn, follow_links);
    if (!file) return std::optional<DType>();
    const Result<StoredTensor> stored = (*file)->tensor(tensor, chunk);
    if (!stored) return std::optional<DType>();
    if (!widest) widest = stored->dtype;
    if (holds_exactly(stored->dtype, *widest)) widest = stored->dtype;
    if (!holds_exactly(*widest, stored->dtype)) {
      return Error(ErrorCode::kCorrupt, "the chunks of a tensor have different dtypes in the files")
          .key(tensor.fqn)
          .expected(name_of(*widest))
          .actual(name_of(stored->dtype));
    }
  }
  return widest == tensor.dtype ? std::optional<DType>() : widest;
}

Result<void> take_recorded_dtypes(Checkpoint::Impl& impl, bool follow_links,
                                  const std::function<bool(std::string_view)>& is_wanted) {
  if (!may_have_stale_dtypes(impl)) return {};
  std::vector<std::string> stale;
  for (CatalogTensor& tensor : impl.catalog.tensors) {
    if (!is_wanted(tensor.fqn)) continue;
    CAIRN_TRY_ASSIGN(const std::optional<DType> dtype, recorded_dtype(impl, tensor, follow_links));
    if (!dtype) continue;
    tensor.dtype = *dtype;
    stale.push_back(tensor.fqn);
  }
  if (!stale.empty()) impl.warnings.push_back(stale_dtypes_warning(stale));
  return {};
}

std::string stale_dtypes_warning(const std::vector<std::string>& keys) {
  const std::string count = keys.size() == 1 ? "a tensor has" : std::to_string(keys.size()) + " tensors have";
  return count +
         " another dtype in the files than in the metadata, which torch wrote by a planner that casts or by a cached "
         "plan; the files count: " +
         listed_keys(keys);
}

}  // namespace cairn::checkpointer
