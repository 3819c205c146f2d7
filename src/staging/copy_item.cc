#include "staging/copy_item.h"

#include "core/region.h"
#include "core/stream_copy.h"

namespace cairn::staging {

CopyForm form_of(const CopyItem& item) {
  if (item.tensor == nullptr) return {item.bytes.size(), true};
  const TensorView& tensor = *item.tensor;
  CopyForm form{item_bytes(tensor.dtype), true};
  std::int64_t step = 1;  // in elements, of the next dimension
  for (std::size_t i = tensor.sizes.size(); i-- > 0;) {
    const std::int64_t size = tensor.sizes[i];
    if (size != 1 && tensor.strides[i] != step) form.is_one_stretch = false;
    step *= size;
  }
  form.bytes *= static_cast<std::uint64_t>(step);
  return form;
}

void copy_part(const CopyItem& item, const CopyForm& form, std::uint64_t begin, std::span<std::byte> target) {
  if (target.empty()) return;
  if (item.tensor == nullptr) {
    stream_copy(target, std::as_bytes(std::span(item.bytes)).subspan(begin, target.size()));
    return;
  }
  const TensorView& tensor = *item.tensor;
  const auto* const memory = static_cast<const std::byte*>(tensor.data);
  if (form.is_one_stretch) {
    stream_copy(target, {memory + begin, target.size()});
    return;
  }
  const std::size_t element = item_bytes(tensor.dtype);
  gather(Region(tensor.sizes, row_major_strides(tensor.sizes), tensor.strides), element, memory,
         static_cast<std::int64_t>(begin / element), target);
}

}  // namespace cairn::staging
