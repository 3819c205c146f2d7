// CopyItem: one thing that is copied into an arena, and how its bytes lie in memory.
#pragma once

#include <cairn/state_dict.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cairn::staging {

// What is copied, and where to: a tensor's elements in row-major order, or ready bytes. Views: what they look at
// outlives them.
struct CopyItem {
  const TensorView* tensor = nullptr;  // null: `bytes`
  std::string_view bytes;
  std::uint64_t arena_offset = 0;
  std::string_view key = {};  // of the tensor, for errors
};

struct CopyForm {
  std::uint64_t bytes = 0;      // that the copy takes
  bool is_one_stretch = false;  // the source has them in a row, in the order of the copy
};
CopyForm form_of(const CopyItem& item);

// Copies the item's bytes from `begin` on, counted in the copy, to `target`; they are there. `form` is the item's own.
// `begin` and the size of `target` are multiples of the size of an element. The target should be past the cache if it
// is large.
void copy_part(const CopyItem& item, const CopyForm& form, std::uint64_t begin, std::span<std::byte> target);

}  // namespace cairn::staging
