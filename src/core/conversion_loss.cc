#include "core/conversion_loss.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>

namespace cairn {
namespace {

struct Strided {
  const std::byte* first;
  std::int64_t step;
};

void as_doubles(DType dtype, const Strided& elements, std::int64_t count, double* numbers) {
  convert(dtype, DType::kFloat64, {elements.first, elements.step, reinterpret_cast<std::byte*>(numbers), 1}, count);
}

// Whether `before` is beyond the range of `to`. float8_e4m3fn has no infinity: larger numbers and infinities become
// 448, to which numbers up to 464 are rounded. The kinds of 8 bits without infinities make infinities NaN.
bool is_overflow(double before, double after, DType to) {
  if (std::isnan(before)) return false;
  if (to == DType::kFloat8E4M3FN) return std::abs(before) > 464;
  return std::isinf(before) ? std::isnan(after) : !std::isfinite(after);
}

void count_one(double before, double after, DType to, ConversionLoss& loss) {
  if (is_overflow(before, after, to)) {
    ++loss.overflows;
  } else if (before != 0 && after == 0) {
    ++loss.underflows;
  }
  const bool is_whole = !std::isfinite(before) || std::trunc(before) == before;
  if (!is_whole) {
    loss.has_fraction = true;
  } else if (std::isfinite(after) && before != after) {
    ++loss.rounded;
  }
}

// The bits of an IEEE-like dtype: all magnitudes from kNotFinite on are infinite or NaN.
template <typename Bits, Bits kNotFinite>
struct FloatBits {
  static constexpr Bits kMagnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
  static Bits magnitude(const std::byte* element) {
    Bits bits;
    std::memcpy(&bits, element, sizeof bits);
    return bits & kMagnitude;
  }
  static bool is_finite(Bits magnitude) { return magnitude < kNotFinite; }
  static constexpr std::int64_t kBytes = sizeof(Bits);
};
using Double = FloatBits<std::uint64_t, 0x7FF0000000000000>;
using Single = FloatBits<std::uint32_t, 0x7F800000>;
using Half = FloatBits<std::uint16_t, 0x7C00>;
using BFloat16 = FloatBits<std::uint16_t, 0x7F80>;

// Without the search for whole numbers: a few instructions per element.
template <typename From, typename To>
void count_fast(const ConversionSide& side, std::int64_t count, ConversionLoss& loss) {
  std::uint64_t overflows = 0;
  std::uint64_t underflows = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto before = From::magnitude(side.from + i * side.from_step * From::kBytes);
    const auto after = To::magnitude(side.to + i * side.to_step * To::kBytes);
    overflows += static_cast<std::uint64_t>(From::is_finite(before) && !To::is_finite(after));
    underflows += static_cast<std::uint64_t>(before != 0 && after == 0);
  }
  loss.overflows += overflows;
  loss.underflows += underflows;
}

using Count = void (*)(const ConversionSide&, std::int64_t, ConversionLoss&);

template <typename From>
Count fast_to(DType to) {
  switch (to) {
    case DType::kFloat32: return count_fast<From, Single>;
    case DType::kFloat16: return count_fast<From, Half>;
    case DType::kBFloat16: return count_fast<From, BFloat16>;
    default: return nullptr;
  }
}

// Null for dtypes of 8 bits, and for conversions to float64, which lose nothing.
Count fast(DType from, DType to) {
  switch (from) {
    case DType::kFloat64: return fast_to<Double>(to);
    case DType::kFloat32: return fast_to<Single>(to);
    case DType::kFloat16: return fast_to<Half>(to);
    case DType::kBFloat16: return fast_to<BFloat16>(to);
    default: return nullptr;
  }
}

}  // namespace

void count_losses(DType from, DType to, const ConversionSide& side, std::int64_t count, ConversionLoss& loss) {
  if (to == DType::kFloat64) return;
  const auto from_bytes = static_cast<std::int64_t>(item_bytes(from));
  const auto to_bytes = static_cast<std::int64_t>(item_bytes(to));
  const Count quick = fast(from, to);
  constexpr std::int64_t kDecoded = 256;  // elements at once
  std::array<double, kDecoded> before;
  std::array<double, kDecoded> after;
  std::int64_t done = 0;
  while (done < count && (quick == nullptr || !loss.has_fraction)) {
    const std::int64_t group = std::min(kDecoded, count - done);
    as_doubles(from, {side.from + done * side.from_step * from_bytes, side.from_step}, group, before.data());
    as_doubles(to, {side.to + done * side.to_step * to_bytes, side.to_step}, group, after.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(group); ++i) count_one(before[i], after[i], to, loss);
    done += group;
  }
  if (done == count) return;
  const ConversionSide rest{side.from + done * side.from_step * from_bytes, side.from_step,
                            side.to + done * side.to_step * to_bytes, side.to_step};
  quick(rest, count - done, loss);
}

}  // namespace cairn
