// Stored elements: the byte changes that elements of a stock file may ask for before they are what they stand for.
//
// Pure; in place. `elements` holds whole elements.
#pragma once

#include <cairn/dtype.h>

#include <cstddef>
#include <span>

namespace cairn {

// Turns the byte order of each number round.
void swap_bytes(DType dtype, std::span<std::byte> elements);

// Turns the sign of each number round; of complex ones both parts.
void negate(DType dtype, std::span<std::byte> elements);
// Of complex numbers the imaginary part alone; leaves others as they are.
void negate_imaginary(DType dtype, std::span<std::byte> elements);

}  // namespace cairn
