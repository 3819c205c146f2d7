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

using ComplexDouble = std::complex<double>;

bool is_nan(double number) { return std::isnan(number); }
bool is_nan(const ComplexDouble& number) { return std::isnan(number.real()) || std::isnan(number.imag()); }

struct Distance {
  double absolute = 0;
  double relative = 0;
};

// The difference of finite numbers may be too large for a double; the quotient of halves is at most 2.
template <typename Number>
Distance infinite_distance(const Number& a, const Number& b) {
  const double larger = std::max(std::abs(a), std::abs(b));
  if (std::isinf(larger)) return {kInfinity, kInfinity};
  return {kInfinity, std::abs(a / 2.0 - b / 2.0) / (larger / 2)};
}

// Of numbers without NaN. Equal infinities have no difference.
Distance distance(double a, double b) {
  if (a == b) return {};
  const double absolute = std::abs(a - b);
  if (std::isinf(absolute)) return infinite_distance(a, b);
  return {absolute, absolute / std::max(std::abs(a), std::abs(b))};
}

Distance distance(const ComplexDouble& a, const ComplexDouble& b) {
  const auto part = [](double x, double y) { return x == y ? 0 : x - y; };
  // std::abs of a complex number is cabs(). std::hypot() is a symbol of glibc 2.35, above the tag of the wheel.
  const double absolute = std::abs(ComplexDouble(part(a.real(), b.real()), part(a.imag(), b.imag())));
  if (absolute == 0) return {};
  if (std::isinf(absolute)) return infinite_distance(a, b);
  return {absolute, absolute / std::max(std::abs(a), std::abs(b))};
}

bool within(const Distance& distance, double tolerance) {
  if (std::isinf(distance.relative)) return false;
  return distance.absolute <= tolerance || distance.relative <= tolerance;
}

void decode(const Elements& elements, std::size_t first, std::size_t count, double* numbers) {
  const ConversionSide side{elements.bytes.data() + first * item_bytes(elements.dtype), 1,
                            reinterpret_cast<std::byte*>(numbers), 1};
  convert(elements.dtype, DType::kFloat64, side, static_cast<std::int64_t>(count));
}

void decode(const Elements& elements, std::size_t first, std::size_t count, ComplexDouble* numbers) {
  const ConversionSide side{elements.bytes.data() + first * item_bytes(elements.dtype), 1,
                            reinterpret_cast<std::byte*>(numbers), 1};
  convert(elements.dtype, DType::kComplex128, side, static_cast<std::int64_t>(count));
}

// Compares groups of elements and counts.
class Comparer {
 public:
  Comparer(const Elements& a, const Elements& b, std::int64_t begin, std::optional<double> tolerance)
      : a_(a), b_(b), begin_(begin), tolerance_(tolerance), has_one_dtype_(a.dtype == b.dtype) {}

  // Number: double or ComplexDouble.
  template <typename Number>
  void compare_numbers() {
    std::array<Number, kGroup> numbers_a;
    std::array<Number, kGroup> numbers_b;
    for_each_unequal_group([&](std::size_t first, std::size_t count) {
      decode(a_, first, count, numbers_a.data());
      decode(b_, first, count, numbers_b.data());
      for (std::size_t i = 0; i < count; ++i) compare_pair(first + i, numbers_a[i], numbers_b[i]);
    });
  }

  void compare_bits() {
    for_each_unequal_group([&](std::size_t first, std::size_t count) {
      for (std::size_t i = first; i < first + count; ++i) {
        if (have_equal_bits(i, 1)) continue;
        ++tally_.unequal;
        count_differing(i);
      }
    });
  }

  const ElementTally& tally() const { return tally_; }

 private:
  template <typename Compare>
  void for_each_unequal_group(const Compare& compare) {
    tally_.elements = a_.bytes.size() / item_bytes(a_.dtype);
    for (std::size_t first = 0; first < tally_.elements; first += kGroup) {
      const std::size_t count = std::min(kGroup, tally_.elements - first);
      if (!have_equal_bits(first, count)) compare(first, count);
    }
  }

  bool have_equal_bits(std::size_t first, std::size_t count) const {
    if (!has_one_dtype_) return false;
    const std::size_t bytes = item_bytes(a_.dtype);
    return std::memcmp(a_.bytes.data() + first * bytes, b_.bytes.data() + first * bytes, count * bytes) == 0;
  }

  template <typename Number>
  void compare_pair(std::size_t element, const Number& a, const Number& b) {
    if (is_nan(a) || is_nan(b)) return compare_nan(is_nan(a) && is_nan(b), element);
    const Distance between = distance(a, b);
    // Equal numbers of one dtype may have different bits: 0.0 and -0.0.
    const bool is_unequal = between.absolute != 0 || (has_one_dtype_ && !have_equal_bits(element, 1));
    if (!is_unequal) return;
    ++tally_.unequal;
    if (between.absolute > tally_.largest_absolute) {
      tally_.largest_absolute = between.absolute;
      tally_.largest_at = position_of(element);
    }
    tally_.largest_relative = std::max(tally_.largest_relative, between.relative);
    if (!tolerance_ || !within(between, *tolerance_)) count_differing(element);
  }

  void compare_nan(bool on_both_sides, std::size_t element) {
    if (have_equal_bits(element, 1)) return;
    if (!on_both_sides) ++tally_.nan_on_one_side;
    const bool is_unequal = has_one_dtype_ || !on_both_sides;
    if (is_unequal) ++tally_.unequal;
    if (tolerance_ ? !on_both_sides : is_unequal) count_differing(element);
  }

  std::int64_t position_of(std::size_t element) const { return begin_ + static_cast<std::int64_t>(element); }

  void count_differing(std::size_t element) {
    ++tally_.differing;
    if (!tally_.first_differing) tally_.first_differing = position_of(element);
  }

  Elements a_;
  Elements b_;
  std::int64_t begin_;
  std::optional<double> tolerance_;
  bool has_one_dtype_;
  ElementTally tally_;
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
  assert(a.bytes.size() / item_bytes(a.dtype) == b.bytes.size() / item_bytes(b.dtype));
  assert(a.dtype == b.dtype || compares_as_numbers(a.dtype, b.dtype));
  Comparer comparer(a, b, begin, tolerance);
  if (!compares_as_numbers(a.dtype, b.dtype)) {
    comparer.compare_bits();
  } else if (is_complex(a.dtype)) {
    comparer.compare_numbers<ComplexDouble>();
  } else {
    comparer.compare_numbers<double>();
  }
  return comparer.tally();
}

}  // namespace cairn
