// CopyItem: one item to be copied into an arena, and the layout of its bytes in memory.
#pragma once

#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cairn::staging {

// The source and target of a copy: a tensor's elements in row-major order, or ready bytes. The item holds views: the
// viewed memory must outlive the item.
struct CopyItem {
  const TensorView* tensor = nullptr;  // null: copy `bytes`
  std::string_view bytes;
  std::uint64_t arena_offset = 0;
  std::string_view key = {};  // of the tensor, for errors
};

struct CopyForm {
  std::uint64_t bytes = 0;      // of the copy
  bool is_one_stretch = false;  // the source is contiguous, in the order of the copy
};
CopyForm form_of(const CopyItem& item);

// Copies bytes of the item to `target`, from offset `begin` in the copy; [begin, begin + target.size()) must be within
// the copy. `form` is form_of(item). `begin` and the size of `target` are multiples of the element size. For a large
// copy the target should not be in the cache.
void copy_part(const CopyItem& item, const CopyForm& form, std::uint64_t begin, std::span<std::byte> target);

}  // namespace cairn::staging
