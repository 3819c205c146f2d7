// A test of an identity of polynomials, after Schwartz and Zippel.
//
// On one axis, write the interval [begin, end) as X(end) - X(begin), with one variable X(place) per place. Two sums of
// intervals are equal exactly if they cover each place equally often. In d dimensions a box is the product of its
// intervals, with separate variables for each dimension. The boxes therefore tile the block exactly if the sum of their
// products equals, as a polynomial, the product of the block.
//
// Two different polynomials of degree d agree on a random point of a field of p elements with a probability of at most
// d / p. Here p is 2^61 - 1, d is at most 64, and the random value of a variable is the seeded hash of its place.
// Coefficients are counts of boxes and below p: different coefficients stay different in the field.
#include "plan/box_tiling.h"

#include "core/seeded_hash.h"

namespace cairn::plan {
namespace {

__extension__ using UInt128 = unsigned __int128;

constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;

std::uint64_t reduce(std::uint64_t value) {
  const std::uint64_t folded = (value & kPrime) + (value >> 61);
  return folded >= kPrime ? folded - kPrime : folded;
}
std::uint64_t add(std::uint64_t a, std::uint64_t b) { return reduce(a + b); }
std::uint64_t subtract(std::uint64_t a, std::uint64_t b) { return a >= b ? a - b : a + kPrime - b; }
std::uint64_t multiply(std::uint64_t a, std::uint64_t b) {
  const UInt128 product = static_cast<UInt128>(a) * b;
  return add(static_cast<std::uint64_t>(product & kPrime), static_cast<std::uint64_t>(product >> 61));
}

std::uint64_t variable(std::size_t dimension, std::int64_t place) {
  const SeededHash hash;
  return reduce(hash(hash(std::uint64_t{dimension}) ^ static_cast<std::uint64_t>(place)));
}

std::uint64_t product(std::span<const std::int64_t> offsets, std::span<const std::int64_t> sizes) {
  std::uint64_t result = 1;
  for (std::size_t d = 0; d < offsets.size(); ++d) {
    result = multiply(result, subtract(variable(d, offsets[d] + sizes[d]), variable(d, offsets[d])));
  }
  return result;
}

}  // namespace

bool is_tiling(const Box& block, std::span<const std::int64_t> boxes) {
  const std::size_t dimensions = block.dimensions();
  if (dimensions == 0) return true;  // a block of one element; a caller with boxes without numbers must count the boxes
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < boxes.size(); i += 2 * dimensions) {
    sum = add(sum, product(boxes.subspan(i, dimensions), boxes.subspan(i + dimensions, dimensions)));
  }
  return sum == product(block.offsets().span(), block.sizes().span());
}

}  // namespace cairn::plan
