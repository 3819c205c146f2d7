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

// Every real dtype is read as one of these three, without loss.
struct Number {
  enum class Kind : std::uint8_t { kReal, kSigned, kUnsigned } kind;
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

Number real(double value) { return {Number::Kind::kReal, value, 0, 0}; }
Number signed_integer(std::int64_t value) { return {Number::Kind::kSigned, 0, value, 0}; }
Number natural(std::uint64_t value) { return {Number::Kind::kUnsigned, 0, 0, value}; }

Number read_float8(Float8 kind, const std::byte* from) {
  return real(float_from_float8(kind, load<std::uint8_t>(from)));
}

Number read_number(DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::kFloat32: return real(load<float>(from));
    case DType::kFloat64: return real(load<double>(from));
    case DType::kFloat16: return real(float_from_half(load<std::uint16_t>(from)));
    case DType::kBFloat16: return real(float_from_bfloat16(load<std::uint16_t>(from)));
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
    default: assert(false && "is_convertible was not asked"); return real(0);
  }
}

double as_double(const Number& number) {
  switch (number.kind) {
    case Number::Kind::kReal: return number.real;
    case Number::Kind::kSigned: return static_cast<double>(number.integer);
    default: return static_cast<double>(number.natural);
  }
}

// As torch does it: a small float is rounded from float, also when the number was a double.
float as_float(const Number& number) {
  switch (number.kind) {
    case Number::Kind::kReal: return static_cast<float>(number.real);
    case Number::Kind::kSigned: return static_cast<float>(number.integer);
    default: return static_cast<float>(number.natural);
  }
}

// Integers wrap as in C; a real number outside the range, for which C promises nothing, becomes the nearest.
template <typename T>
T as_integer(const Number& number) {
  if (number.kind == Number::Kind::kSigned) return static_cast<T>(number.integer);
  if (number.kind == Number::Kind::kUnsigned) return static_cast<T>(number.natural);
  if (std::isnan(number.real)) return 0;
  constexpr double kBelow = static_cast<double>(std::numeric_limits<T>::min());
  const double above = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (number.real <= kBelow) return std::numeric_limits<T>::min();
  if (number.real >= above) return std::numeric_limits<T>::max();
  return static_cast<T>(number.real);
}

bool as_bool(const Number& number) {
  return number.kind == Number::Kind::kReal ? number.real != 0 : (number.integer != 0 || number.natural != 0);
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
    case DType::kBool: return store(to, static_cast<std::uint8_t>(as_bool(number) ? 1 : 0));
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

bool is_real(DType dtype) {
  return static_cast<std::uint8_t>(dtype) <= static_cast<std::uint8_t>(DType::kFloat8E8M0FNU) &&
         dtype != DType::kComplex32 && dtype != DType::kComplex64 && dtype != DType::kComplex128;
}

// The dtype of the two parts of a complex one.
std::optional<DType> part_of_complex(DType dtype) {
  if (dtype == DType::kComplex32) return DType::kFloat16;
  if (dtype == DType::kComplex64) return DType::kFloat32;
  if (dtype == DType::kComplex128) return DType::kFloat64;
  return std::nullopt;
}

}  // namespace

bool is_convertible(DType from, DType to) {
  return (is_real(from) && is_real(to)) || (part_of_complex(from) && part_of_complex(to));
}

void convert(DType from, DType to, const ConversionSide& side, std::int64_t count) {
  const std::optional<DType> from_part = part_of_complex(from);
  const std::size_t parts = from_part ? 2 : 1;
  const DType from_real = from_part.value_or(from);
  const DType to_real = part_of_complex(to).value_or(to);
  const auto from_bytes = static_cast<std::int64_t>(item_bytes(from));
  const auto to_bytes = static_cast<std::int64_t>(item_bytes(to));
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::size_t part = 0; part < parts; ++part) {
      const std::byte* source = side.from + i * side.from_step * from_bytes + part * item_bytes(from_real);
      std::byte* target = side.to + i * side.to_step * to_bytes + part * item_bytes(to_real);
      write_number(to_real, target, read_number(from_real, source));
    }
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
