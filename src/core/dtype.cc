#include <cairn/tensor.h>

#include <array>

namespace cairn {
namespace {

struct Row {
  std::string_view name;
  std::uint8_t bytes;
  bool floating_point;
  bool quantized;
};

// In the order of the enumerators: the code is the index.
constexpr std::array<Row, kDTypeCount> kRows = {{
    {"float32", 4, true, false},         {"float64", 8, true, false},
    {"float16", 2, true, false},         {"bfloat16", 2, true, false},
    {"complex32", 4, false, false},      {"complex64", 8, false, false},
    {"complex128", 16, false, false},    {"uint8", 1, false, false},
    {"int8", 1, false, false},           {"int16", 2, false, false},
    {"int32", 4, false, false},          {"int64", 8, false, false},
    {"bool", 1, false, false},           {"uint16", 2, false, false},
    {"uint32", 4, false, false},         {"uint64", 8, false, false},
    {"float8_e4m3fn", 1, true, false},   {"float8_e5m2", 1, true, false},
    {"float8_e4m3fnuz", 1, true, false}, {"float8_e5m2fnuz", 1, true, false},
    {"float8_e8m0fnu", 1, true, false},  {"float4_e2m1fn_x2", 1, true, false},
    {"quint8", 1, false, true},          {"qint8", 1, false, true},
    {"qint32", 4, false, true},          {"quint4x2", 1, false, true},
    {"quint2x4", 1, false, true},        {"bits1x8", 1, false, false},
    {"bits2x4", 1, false, false},        {"bits4x2", 1, false, false},
    {"bits8", 1, false, false},          {"bits16", 2, false, false},
}};

const Row& row(DType dtype) { return kRows[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::string_view name_of(DType dtype) { return row(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (std::size_t code = 0; code < kDTypeCount; ++code) {
    if (kRows[code].name == name) return static_cast<DType>(code);
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_code(std::uint8_t code) {
  if (code >= kDTypeCount) return std::nullopt;
  return static_cast<DType>(code);
}

std::size_t item_bytes(DType dtype) { return row(dtype).bytes; }
bool is_floating_point(DType dtype) { return row(dtype).floating_point; }
bool is_complex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}
bool is_quantized(DType dtype) { return row(dtype).quantized; }

}  // namespace cairn
