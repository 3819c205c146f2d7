#include "core/element_comparison.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>

#include "core/conversion.h"

namespace cairn {
namespace {

// Elements are decoded in groups of this size, which stay in the processor's cache.
constexpr std::size_t kGroup = 1024;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Number = std::complex<double>;  // a real number has the imaginary part 0
using Group = std::array<Number, kGroup>;

bool is_complex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

bool is_nan(const Number& number) { return std::isnan(number.real()) || std::isnan(number.imag()); }

// Equal infinities have no difference.
double part_difference(double a, double b) { return a == b ? 0 : a - b; }

struct Distance {
  double absolute = 0;
  double relative = 0;
};

// Of numbers without NaN.
Distance distance(const Number& a, const Number& b) {
  const double absolute = std::hypot(part_difference(a.real(), b.real()), part_difference(a.imag(), b.imag()));
  if (absolute == 0) return {};
  if (std::isinf(absolute)) {
    // The difference of finite numbers may be too large for a double; the quotient of halves is at most 2.
    const double larger = std::max(std::abs(a), std::abs(b));
    if (std::isinf(larger)) return {kInfinity, kInfinity};
    return {kInfinity, std::abs(a / 2.0 - b / 2.0) / (larger / 2)};
  }
  return {absolute, absolute / std::max(std::abs(a), std::abs(b))};
}

bool within(const Distance& distance, double tolerance) {
  if (std::isinf(distance.relative)) return false;
  return distance.absolute <= tolerance || distance.relative <= tolerance;
}

void decode(const Elements& elements, std::size_t first, std::size_t count, Group& numbers) {
  const ConversionSide side{elements.bytes.data() + first * item_bytes(elements.dtype), 1,
                            reinterpret_cast<std::byte*>(numbers.data()), 1};
  convert(elements.dtype, DType::kComplex128, side, static_cast<std::int64_t>(count));
}

// Compares groups of elements and counts.
class Comparer {
 public:
  Comparer(const Elements& a, const Elements& b, std::int64_t begin, std::optional<double> tolerance)
      : a_(a), b_(b), begin_(begin), tolerance_(tolerance), as_numbers_(compares_as_numbers(a.dtype, b.dtype)) {}

  void compare(std::size_t first, std::size_t count) {
    tally_.elements += count;
    if (have_equal_bits(first, count)) return;
    if (as_numbers_) {
      decode(a_, first, count, numbers_a_);
      decode(b_, first, count, numbers_b_);
    }
    for (std::size_t i = 0; i < count; ++i) compare_element(first + i, i);
  }

  const ElementTally& tally() const { return tally_; }

 private:
  bool have_equal_bits(std::size_t first, std::size_t count) const {
    if (a_.dtype != b_.dtype) return false;
    const std::size_t bytes = item_bytes(a_.dtype);
    return std::memcmp(a_.bytes.data() + first * bytes, b_.bytes.data() + first * bytes, count * bytes) == 0;
  }

  void compare_element(std::size_t element, std::size_t in_group) {
    if (have_equal_bits(element, 1)) return;
    const std::int64_t position = begin_ + static_cast<std::int64_t>(element);
    if (!as_numbers_) {
      ++tally_.unequal;
      return count_differing(position);
    }
    const Number& a = numbers_a_[in_group];
    const Number& b = numbers_b_[in_group];
    if (is_nan(a) || is_nan(b)) return compare_nan(is_nan(a) && is_nan(b), position);
    const Distance between = distance(a, b);
    if (between.absolute > tally_.largest_absolute) {
      tally_.largest_absolute = between.absolute;
      tally_.largest_at = position;
    }
    tally_.largest_relative = std::max(tally_.largest_relative, between.relative);
    const bool unequal = a_.dtype == b_.dtype || between.absolute != 0;
    if (unequal) ++tally_.unequal;
    if (tolerance_ ? !within(between, *tolerance_) : unequal) count_differing(position);
  }

  void compare_nan(bool on_both_sides, std::int64_t position) {
    if (!on_both_sides) ++tally_.nan_on_one_side;
    const bool unequal = a_.dtype == b_.dtype || !on_both_sides;
    if (unequal) ++tally_.unequal;
    if (tolerance_ ? !on_both_sides : unequal) count_differing(position);
  }

  void count_differing(std::int64_t position) {
    ++tally_.differing;
    if (!tally_.first_differing) tally_.first_differing = position;
  }

  Elements a_;
  Elements b_;
  std::int64_t begin_;
  std::optional<double> tolerance_;
  bool as_numbers_;
  ElementTally tally_;
  Group numbers_a_;
  Group numbers_b_;
};

std::optional<std::int64_t> earlier(std::optional<std::int64_t> a, std::optional<std::int64_t> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

}  // namespace

bool compares_as_numbers(DType a, DType b) {
  const bool are_numbers = is_convertible(a, DType::kComplex128) && is_convertible(b, DType::kComplex128);
  if (!are_numbers) return false;
  return (is_floating_point(a) && is_floating_point(b)) || (is_complex(a) && is_complex(b));
}

bool agree_within(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return within(distance(a, b), tolerance);
}

void ElementTally::add(const ElementTally& other) {
  elements += other.elements;
  unequal += other.unequal;
  differing += other.differing;
  nan_on_one_side += other.nan_on_one_side;
  if (other.largest_absolute > largest_absolute) {
    largest_at = other.largest_at;
  } else if (other.largest_absolute == largest_absolute) {
    largest_at = earlier(largest_at, other.largest_at);
  }
  largest_absolute = std::max(largest_absolute, other.largest_absolute);
  largest_relative = std::max(largest_relative, other.largest_relative);
  first_differing = earlier(first_differing, other.first_differing);
}

ElementTally compare_elements(const Elements& a, const Elements& b, std::int64_t begin,
                              std::optional<double> tolerance) {
  const std::size_t count = a.bytes.size() / item_bytes(a.dtype);
  assert(count == b.bytes.size() / item_bytes(b.dtype));
  assert(a.dtype == b.dtype || compares_as_numbers(a.dtype, b.dtype));
  Comparer comparer(a, b, begin, tolerance);
  for (std::size_t first = 0; first < count; first += kGroup) comparer.compare(first, std::min(kGroup, count - first));
  return comparer.tally();
}

}  // namespace cairn
