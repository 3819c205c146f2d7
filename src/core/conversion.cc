#include "core/conversion.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include "core/conversion_loss.h"
#include "core/small_float.h"

namespace cairn {
namespace {

// A loop over elements for each pair of dtypes would be 324 loops. Each real dtype has a wide dtype instead, which
// holds its numbers without loss: float32, float64, int64 or uint64. A loop widens, and a loop converts each wide dtype
// into each dtype. A float of up to 32 bits stays a float, because conversion to double would change the bits of a
// signalling NaN.
using Loop = void (*)(const ConversionSide& side, std::int64_t count);

// The loop that converts each element by the function kConvert, with the types of its argument and result.
template <auto kConvert>
struct LoopOf;
template <typename From, typename To, To (*kConvert)(From)>
struct LoopOf<kConvert> {
  static void run(const ConversionSide& side, std::int64_t count) {
    if (side.from_step == 1 && side.to_step == 1) return run_with_steps(side, count, Bytes<From>(), Bytes<To>());
    run_with_steps(side, count, side.from_step * Bytes<From>(), side.to_step * Bytes<To>());
  }

 private:
  template <typename T>
  using Bytes = std::integral_constant<std::int64_t, static_cast<std::int64_t>(sizeof(T))>;

  // The steps are in bytes. Constant steps make the loop a third shorter.
  template <typename FromStep, typename ToStep>
  static void run_with_steps(const ConversionSide& side, std::int64_t count, FromStep from_step, ToStep to_step) {
    const std::byte* const from = side.from;
    std::byte* const to = side.to;
    for (std::int64_t i = 0; i < count; ++i) {
      From element;
      std::memcpy(&element, from + i * from_step, sizeof element);
      const To converted = kConvert(element);
      std::memcpy(to + i * to_step, &converted, sizeof converted);
    }
  }
};

template <typename From, typename To>
To cast(From element) {
  return static_cast<To>(element);
}
template <Float8 kKind>
float widened_float8(std::uint8_t bits) {
  return float_from_float8(kKind, bits);
}
std::uint64_t widened_bool(std::uint8_t byte) { return byte != 0 ? 1 : 0; }

DType wide_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return DType::kFloat64;
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64: return DType::kInt64;
    case DType::kBool:
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64: return DType::kUInt64;
    default: return DType::kFloat32;
  }
}

// Into wide_of(from), which differs from `from`.
Loop widening(DType from) {
  switch (from) {
    case DType::kFloat16: return LoopOf<float_from_half>::run;
    case DType::kBFloat16: return LoopOf<float_from_bfloat16>::run;
    case DType::kUInt8: return LoopOf<cast<std::uint8_t, std::uint64_t>>::run;
    case DType::kUInt16: return LoopOf<cast<std::uint16_t, std::uint64_t>>::run;
    case DType::kUInt32: return LoopOf<cast<std::uint32_t, std::uint64_t>>::run;
    case DType::kInt8: return LoopOf<cast<std::int8_t, std::int64_t>>::run;
    case DType::kInt16: return LoopOf<cast<std::int16_t, std::int64_t>>::run;
    case DType::kInt32: return LoopOf<cast<std::int32_t, std::int64_t>>::run;
    case DType::kBool: return LoopOf<widened_bool>::run;
    case DType::kFloat8E4M3FN: return LoopOf<widened_float8<Float8::kE4M3FN>>::run;
    case DType::kFloat8E5M2: return LoopOf<widened_float8<Float8::kE5M2>>::run;
    case DType::kFloat8E4M3FNUZ: return LoopOf<widened_float8<Float8::kE4M3FNUZ>>::run;
    case DType::kFloat8E5M2FNUZ: return LoopOf<widened_float8<Float8::kE5M2FNUZ>>::run;
    case DType::kFloat8E8M0FNU: return LoopOf<widened_float8<Float8::kE8M0FNU>>::run;
    default: assert(false && "is_convertible was not asked"); return nullptr;
  }
}

// The functions below convert a number of a wide dtype. As in torch, a small float is always rounded from float, even
// if the number is a double.
template <typename Wide>
std::uint16_t as_half(Wide number) {
  return half_from_float(static_cast<float>(number));
}
template <typename Wide>
std::uint16_t as_bfloat16(Wide number) {
  return bfloat16_from_float(static_cast<float>(number));
}
template <typename Wide, Float8 kKind>
std::uint8_t as_float8(Wide number) {
  return float8_from_float(kKind, static_cast<float>(number));
}
template <typename Wide>
std::uint8_t as_bool(Wide number) {
  return number != 0 ? 1 : 0;
}

// Integers wrap as in C. A real number wraps on conversion to a byte, because torch converts through int64. Any other
// real number outside the range is undefined in C, and becomes the nearest integer here; NaN becomes 0.
template <typename Wide, typename T>
T as_integer(Wide number) {
  if constexpr (std::is_integral_v<Wide>) {
    return static_cast<T>(number);
  } else {
    const double value = number;
    if (std::isnan(value)) return 0;
    constexpr double kInt64Above = 0x1p63;
    if (std::is_same_v<T, std::uint8_t> && std::abs(value) < kInt64Above) {
      return static_cast<T>(static_cast<std::int64_t>(value));
    }
    constexpr double kBelow = static_cast<double>(std::numeric_limits<T>::min());
    const double above = std::ldexp(1.0, std::numeric_limits<T>::digits);
    if (value <= kBelow) return std::numeric_limits<T>::min();
    if (value >= above) return std::numeric_limits<T>::max();
    return static_cast<T>(value);
  }
}

template <typename Wide>
Loop narrowing_from(DType to) {
  switch (to) {
    case DType::kFloat32: return LoopOf<cast<Wide, float>>::run;
    case DType::kFloat64: return LoopOf<cast<Wide, double>>::run;
    case DType::kFloat16: return LoopOf<as_half<Wide>>::run;
    case DType::kBFloat16: return LoopOf<as_bfloat16<Wide>>::run;
    case DType::kUInt8: return LoopOf<as_integer<Wide, std::uint8_t>>::run;
    case DType::kInt8: return LoopOf<as_integer<Wide, std::int8_t>>::run;
    case DType::kInt16: return LoopOf<as_integer<Wide, std::int16_t>>::run;
    case DType::kInt32: return LoopOf<as_integer<Wide, std::int32_t>>::run;
    case DType::kInt64: return LoopOf<as_integer<Wide, std::int64_t>>::run;
    case DType::kBool: return LoopOf<as_bool<Wide>>::run;
    case DType::kUInt16: return LoopOf<as_integer<Wide, std::uint16_t>>::run;
    case DType::kUInt32: return LoopOf<as_integer<Wide, std::uint32_t>>::run;
    case DType::kUInt64: return LoopOf<as_integer<Wide, std::uint64_t>>::run;
    case DType::kFloat8E4M3FN: return LoopOf<as_float8<Wide, Float8::kE4M3FN>>::run;
    case DType::kFloat8E5M2: return LoopOf<as_float8<Wide, Float8::kE5M2>>::run;
    case DType::kFloat8E4M3FNUZ: return LoopOf<as_float8<Wide, Float8::kE4M3FNUZ>>::run;
    case DType::kFloat8E5M2FNUZ: return LoopOf<as_float8<Wide, Float8::kE5M2FNUZ>>::run;
    case DType::kFloat8E8M0FNU: return LoopOf<as_float8<Wide, Float8::kE8M0FNU>>::run;
    default: assert(false && "is_convertible was not asked"); return nullptr;
  }
}

Loop narrowing(DType wide, DType to) {
  switch (wide) {
    case DType::kFloat64: return narrowing_from<double>(to);
    case DType::kInt64: return narrowing_from<std::int64_t>(to);
    case DType::kUInt64: return narrowing_from<std::uint64_t>(to);
    default: return narrowing_from<float>(to);
  }
}

// Elements are widened in groups of this size, which stay in the processor's cache.
constexpr std::int64_t kWidened = 512;
constexpr std::size_t kWideBytesMax = 8;

// The part of a side from element `first` on.
ConversionSide from_element(const ConversionSide& side, std::int64_t first, DType from, DType to) {
  return {side.from + first * side.from_step * static_cast<std::int64_t>(item_bytes(from)), side.from_step,
          side.to + first * side.to_step * static_cast<std::int64_t>(item_bytes(to)), side.to_step};
}

void convert_real(DType from, DType to, const ConversionSide& side, std::int64_t count) {
  const DType wide = wide_of(from);
  if (wide == from) return narrowing(wide, to)(side, count);
  const Loop widen = widening(from);
  if (wide == to) return widen(side, count);
  const Loop narrow = narrowing(wide, to);
  std::array<std::byte, kWidened * kWideBytesMax> numbers;
  for (std::int64_t first = 0; first < count; first += kWidened) {
    const std::int64_t group = std::min(kWidened, count - first);
    const ConversionSide rest = from_element(side, first, from, to);
    widen({rest.from, rest.from_step, numbers.data(), 1}, group);
    narrow({numbers.data(), 1, rest.to, rest.to_step}, group);
  }
}

// Copies elements without a change of the bits of a NaN.
void copy_real(DType dtype, const ConversionSide& side, std::int64_t count) {
  if (dtype == DType::kFloat16) return LoopOf<cast<std::uint16_t, std::uint16_t>>::run(side, count);
  if (dtype == DType::kFloat32) return LoopOf<cast<std::uint32_t, std::uint32_t>>::run(side, count);
  return LoopOf<cast<std::uint64_t, std::uint64_t>>::run(side, count);
}

// Whether each element is a single real or complex number.
bool is_number(DType dtype) {
  return static_cast<std::uint8_t>(dtype) <= static_cast<std::uint8_t>(DType::kFloat8E8M0FNU);
}

// The dtype of the two parts of a complex dtype.
std::optional<DType> part_of_complex(DType dtype) {
  if (dtype == DType::kComplex32) return DType::kFloat16;
  if (dtype == DType::kComplex64) return DType::kFloat32;
  if (dtype == DType::kComplex128) return DType::kFloat64;
  return std::nullopt;
}

// From a complex dtype with parts of dtype `part`.
void convert_complex_to_bool(DType part, const ConversionSide& side, std::int64_t count) {
  convert_real(part, DType::kBool, side, count);
  const ConversionSide imaginary{side.from + item_bytes(part), side.from_step, side.to, side.to_step};
  std::array<std::byte, kWidened> trues;
  for (std::int64_t first = 0; first < count; first += kWidened) {
    const std::int64_t group = std::min(kWidened, count - first);
    const ConversionSide rest = from_element(imaginary, first, part, DType::kBool);
    convert_real(part, DType::kBool, {rest.from, rest.from_step, trues.data(), 1}, group);
    for (std::int64_t i = 0; i < group; ++i) rest.to[i * rest.to_step] |= trues[static_cast<std::size_t>(i)];
  }
}

}  // namespace

bool is_convertible(DType from, DType to) { return is_number(from) && is_number(to); }

void convert(DType from, DType to, const ConversionSide& side, std::int64_t count) {
  const std::optional<DType> from_part = part_of_complex(from);
  const std::optional<DType> to_part = part_of_complex(to);
  const DType from_real = from_part.value_or(from);
  const DType to_real = to_part.value_or(to);
  // A complex number is two elements of its parts.
  const ConversionSide real{side.from, side.from_step * (from_part ? 2 : 1), side.to, side.to_step * (to_part ? 2 : 1)};
  if (from_part && to == DType::kBool) return convert_complex_to_bool(from_real, real, count);
  if (from_part == to) return copy_real(to, real, count);
  convert_real(from_real, to_real, real, count);
  if (!to_part) return;
  std::byte* const imaginary = real.to + item_bytes(to_real);
  if (from_part) {
    return convert_real(from_real, to_real,
                        {real.from + item_bytes(from_real), real.from_step, imaginary, real.to_step}, count);
  }
  constexpr float kZero = 0;
  convert_real(DType::kFloat32, to_real, {reinterpret_cast<const std::byte*>(&kZero), 0, imaginary, real.to_step},
               count);
}

void scatter_converted(const Region& region, const DTypeChange& change, std::span<const std::byte> file_bytes,
                       std::int64_t begin, std::byte* memory) {
  const auto from_bytes = static_cast<std::int64_t>(item_bytes(change.from));
  const auto to_bytes = static_cast<std::int64_t>(item_bytes(change.to));
  const std::int64_t end = begin + static_cast<std::int64_t>(file_bytes.size()) / from_bytes;
  region.for_runs(begin, end, [&](const Run& run) {
    const ConversionSide side{file_bytes.data() + (run.file_offset - begin) * from_bytes, region.file_step(),
                              memory + run.memory_offset * to_bytes, region.memory_step()};
    convert(change.from, change.to, side, run.count);
    if (change.loss != nullptr) count_losses(change.from, change.to, side, run.count, *change.loss);
  });
}

}  // namespace cairn
