#include "core/conversion.h"

#include <array>
#include <cassert>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>

#include "core/small_float.h"

namespace cairn {
namespace {

// Every real dtype is read as one of four kinds, without loss. A float of up to 32 bits stays a float, because
// conversion to double would change the bits of a signalling NaN.
struct Number {
  enum class Kind : std::uint8_t { kSingle, kDouble, kSigned, kUnsigned } kind;
  float single = 0;
  double real = 0;
  std::int64_t integer = 0;
  std::uint64_t natural = 0;
};

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <typename T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

Number single(float value) { return {Number::Kind::kSingle, value, 0, 0, 0}; }
Number real(double value) { return {Number::Kind::kDouble, 0, value, 0, 0}; }
Number signed_integer(std::int64_t value) { return {Number::Kind::kSigned, 0, 0, value, 0}; }
Number natural(std::uint64_t value) { return {Number::Kind::kUnsigned, 0, 0, 0, value}; }

Number read_float8(Float8 kind, const std::byte* from) {
  return single(float_from_float8(kind, load<std::uint8_t>(from)));
}

Number read_number(DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::kFloat32: return single(load<float>(from));
    case DType::kFloat64: return real(load<double>(from));
    case DType::kFloat16: return single(float_from_half(load<std::uint16_t>(from)));
    case DType::kBFloat16: return single(float_from_bfloat16(load<std::uint16_t>(from)));
    case DType::kUInt8: return natural(load<std::uint8_t>(from));
    case DType::kInt8: return signed_integer(load<std::int8_t>(from));
    case DType::kInt16: return signed_integer(load<std::int16_t>(from));
    case DType::kInt32: return signed_integer(load<std::int32_t>(from));
    case DType::kInt64: return signed_integer(load<std::int64_t>(from));
    case DType::kBool: return natural(load<std::uint8_t>(from) != 0 ? 1 : 0);
    case DType::kUInt16: return natural(load<std::uint16_t>(from));
    case DType::kUInt32: return natural(load<std::uint32_t>(from));
    case DType::kUInt64: return natural(load<std::uint64_t>(from));
    case DType::kFloat8E4M3FN: return read_float8(Float8::kE4M3FN, from);
    case DType::kFloat8E5M2: return read_float8(Float8::kE5M2, from);
    case DType::kFloat8E4M3FNUZ: return read_float8(Float8::kE4M3FNUZ, from);
    case DType::kFloat8E5M2FNUZ: return read_float8(Float8::kE5M2FNUZ, from);
    case DType::kFloat8E8M0FNU: return read_float8(Float8::kE8M0FNU, from);
    default: assert(false && "is_convertible was not asked"); return single(0);
  }
}

double as_double(const Number& number) {
  switch (number.kind) {
    case Number::Kind::kSingle: return number.single;
    case Number::Kind::kDouble: return number.real;
    case Number::Kind::kSigned: return static_cast<double>(number.integer);
    default: return static_cast<double>(number.natural);
  }
}

// As in torch, a small float is always rounded from float, even if the number was a double.
float as_float(const Number& number) {
  switch (number.kind) {
    case Number::Kind::kSingle: return number.single;
    case Number::Kind::kDouble: return static_cast<float>(number.real);
    case Number::Kind::kSigned: return static_cast<float>(number.integer);
    default: return static_cast<float>(number.natural);
  }
}

// Integers wrap as in C. A real number wraps on conversion to a byte, because torch converts through int64. Any further
// real number outside the range is undefined in C, and becomes the nearest integer here; NaN becomes 0.
template <typename T>
T as_integer(const Number& number) {
  if (number.kind == Number::Kind::kSigned) return static_cast<T>(number.integer);
  if (number.kind == Number::Kind::kUnsigned) return static_cast<T>(number.natural);
  const double value = as_double(number);
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

bool as_bool(const Number& number) {
  switch (number.kind) {
    case Number::Kind::kSigned: return number.integer != 0;
    case Number::Kind::kUnsigned: return number.natural != 0;
    default: return as_double(number) != 0;
  }
}

void write_float8(Float8 kind, std::byte* to, const Number& number) {
  store(to, float8_from_float(kind, as_float(number)));
}

void write_number(DType dtype, std::byte* to, const Number& number) {
  switch (dtype) {
    case DType::kFloat32: return store(to, as_float(number));
    case DType::kFloat64: return store(to, as_double(number));
    case DType::kFloat16: return store(to, half_from_float(as_float(number)));
    case DType::kBFloat16: return store(to, bfloat16_from_float(as_float(number)));
    case DType::kUInt8: return store(to, as_integer<std::uint8_t>(number));
    case DType::kInt8: return store(to, as_integer<std::int8_t>(number));
    case DType::kInt16: return store(to, as_integer<std::int16_t>(number));
    case DType::kInt32: return store(to, as_integer<std::int32_t>(number));
    case DType::kInt64: return store(to, as_integer<std::int64_t>(number));
    case DType::kUInt16: return store(to, as_integer<std::uint16_t>(number));
    case DType::kUInt32: return store(to, as_integer<std::uint32_t>(number));
    case DType::kUInt64: return store(to, as_integer<std::uint64_t>(number));
    case DType::kFloat8E4M3FN: return write_float8(Float8::kE4M3FN, to, number);
    case DType::kFloat8E5M2: return write_float8(Float8::kE5M2, to, number);
    case DType::kFloat8E4M3FNUZ: return write_float8(Float8::kE4M3FNUZ, to, number);
    case DType::kFloat8E5M2FNUZ: return write_float8(Float8::kE5M2FNUZ, to, number);
    case DType::kFloat8E8M0FNU: return write_float8(Float8::kE8M0FNU, to, number);
    default: assert(false && "is_convertible was not asked");
  }
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

}  // namespace

bool is_convertible(DType from, DType to) { return is_number(from) && is_number(to); }

void convert(DType from, DType to, const ConversionSide& side, std::int64_t count) {
  const std::optional<DType> from_part = part_of_complex(from);
  const std::optional<DType> to_part = part_of_complex(to);
  const DType from_real = from_part.value_or(from);
  const DType to_real = to_part.value_or(to);
  const auto from_bytes = static_cast<std::int64_t>(item_bytes(from));
  const auto to_bytes = static_cast<std::int64_t>(item_bytes(to));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::byte* source = side.from + i * side.from_step * from_bytes;
    std::byte* target = side.to + i * side.to_step * to_bytes;
    if (from_part == to) {  // the unchanged real part, including NaN payloads
      std::memcpy(target, source, item_bytes(to));
      continue;
    }
    const Number number = read_number(from_real, source);
    const Number imaginary = from_part ? read_number(from_real, source + item_bytes(from_real)) : single(0);
    if (to == DType::kBool) {
      store(target, static_cast<std::uint8_t>(as_bool(number) || as_bool(imaginary) ? 1 : 0));
      continue;
    }
    write_number(to_real, target, number);
    if (to_part) write_number(to_real, target + item_bytes(to_real), imaginary);
  }
}

void scatter_converted(const Region& region, DTypeChange change, std::span<const std::byte> file_bytes,
                       std::int64_t begin, std::byte* memory) {
  const auto from_bytes = static_cast<std::int64_t>(item_bytes(change.from));
  const auto to_bytes = static_cast<std::int64_t>(item_bytes(change.to));
  const std::int64_t end = begin + static_cast<std::int64_t>(file_bytes.size()) / from_bytes;
  region.for_runs(begin, end, [&](const Run& run) {
    convert(change.from, change.to,
            {file_bytes.data() + (run.file_offset - begin) * from_bytes, region.file_step(),
             memory + run.memory_offset * to_bytes, region.memory_step()},
            run.count);
  });
}

}  // namespace cairn
