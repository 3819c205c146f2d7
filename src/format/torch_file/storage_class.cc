#include "format/torch_file/storage_class.h"

#include <algorithm>
#include <array>
#include <utility>

namespace cairn::torch_file {
namespace {

constexpr std::array<std::pair<std::string_view, DType>, 17> kTypedStorages{{
    {"FloatStorage", DType::kFloat32},
    {"BFloat16Storage", DType::kBFloat16},
    {"HalfStorage", DType::kFloat16},
    {"LongStorage", DType::kInt64},
    {"DoubleStorage", DType::kFloat64},
    {"IntStorage", DType::kInt32},
    {"ByteStorage", DType::kUInt8},
    {"BoolStorage", DType::kBool},
    {"ShortStorage", DType::kInt16},
    {"CharStorage", DType::kInt8},
    {"ComplexFloatStorage", DType::kComplex64},
    {"ComplexDoubleStorage", DType::kComplex128},
    {"QUInt8Storage", DType::kQUInt8},
    {"QInt8Storage", DType::kQInt8},
    {"QInt32Storage", DType::kQInt32},
    {"QUInt4x2Storage", DType::kQUInt4x2},
    {"QUInt2x4Storage", DType::kQUInt2x4},
}};

}  // namespace

StorageClass storage_class_of(DType dtype) {
  const auto found = std::find_if(kTypedStorages.begin(), kTypedStorages.end(),
                                  [&](const auto& storage) { return storage.second == dtype; });
  if (found != kTypedStorages.end()) return {"torch", found->first, false};
  return {"torch.storage", "UntypedStorage", true};
}

std::optional<DType> dtype_of_storage_class(std::string_view name) {
  const auto found = std::find_if(kTypedStorages.begin(), kTypedStorages.end(),
                                  [&](const auto& storage) { return storage.first == name; });
  if (found == kTypedStorages.end()) return std::nullopt;
  return found->second;
}

}  // namespace cairn::torch_file
