// Stored elements: the changes of bytes that turn the stored elements of a torch file into their values.
//
// Pure; in place. `elements` holds whole elements.
#pragma once

#include <cairn/tensor.h>

#include <cstddef>
#include <span>

namespace cairn {

// Reverses the byte order of each number.
void swap_bytes(DType dtype, std::span<std::byte> elements);

// Negates each number, and both parts of a complex number.
void negate(DType dtype, std::span<std::byte> elements);
// Negates the imaginary parts of complex numbers; leaves real numbers unchanged.
void negate_imaginary(DType dtype, std::span<std::byte> elements);

}  // namespace cairn
