// DType: the element types of torch 2.13, by torch's names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

// The numbers are part of the format (docs/format.md): never reuse or change a number.
enum class DType : std::uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kComplex32 = 4,
  kComplex64 = 5,
  kComplex128 = 6,
  kUInt8 = 7,
  kInt8 = 8,
  kInt16 = 9,
  kInt32 = 10,
  kInt64 = 11,
  kBool = 12,
  kUInt16 = 13,
  kUInt32 = 14,
  kUInt64 = 15,
  kFloat8E4M3FN = 16,
  kFloat8E5M2 = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2FNUZ = 19,
  kFloat8E8M0FNU = 20,
  kFloat4E2M1FNx2 = 21,  // two elements in a byte; torch counts the bytes
  kQUInt8 = 22,          // quantised types are carried as torch.save payloads only
  kQInt8 = 23,
  kQInt32 = 24,
  kQUInt4x2 = 25,
  kQUInt2x4 = 26,
  kBits1x8 = 27,
  kBits2x4 = 28,
  kBits4x2 = 29,
  kBits8 = 30,
  kBits16 = 31,
};
inline constexpr std::size_t kDTypeCount = 32;

// torch's name without the module: "float32", "bfloat16", "float8_e4m3fn".
std::string_view name_of(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
std::optional<DType> dtype_from_code(std::uint8_t code);

// Bytes of an element, as torch counts elements.
std::size_t item_bytes(DType dtype);

// Real floating-point types, which DCP converts among each other on load. False for complex types.
bool is_floating_point(DType dtype);
bool is_quantized(DType dtype);

}  // namespace cairn
