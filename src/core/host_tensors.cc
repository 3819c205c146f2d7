#include "core/host_tensors.h"

#include <variant>

namespace cairn {

Result<void> expect_host_tensor(const TensorView& tensor, std::string_view key) {
  if (tensor.device.is_cpu()) return {};
  return Error(ErrorCode::kUnsupported,
               "this call takes tensors in the memory of the CPU alone; copy the tensor to the CPU first")
      .key(key)
      .expected("cpu")
      .actual(to_string(tensor.device));
}

Result<void> expect_host_tensors(std::span<const Entry> entries) {
  for (const Entry& entry : entries) {
    const auto* const tensor = std::get_if<TensorEntry>(&entry.content);
    if (tensor != nullptr) CAIRN_TRY(expect_host_tensor(tensor->local, entry.fqn));
  }
  return {};
}

}  // namespace cairn
