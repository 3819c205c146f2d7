#include "catalog_text.h"

#include <fmt/format.h>

#include <limits>

#include "printable.h"

namespace cairn::cli {
namespace {

constexpr std::uint64_t kBytesMax = std::numeric_limits<std::uint64_t>::max();

}  // namespace

std::uint64_t tensor_bytes(const CatalogTensor& tensor) { return tensor_bytes(tensor.dtype, tensor.shape); }

std::uint64_t tensor_bytes(DType dtype, const Extents& shape) {
  const Result<std::int64_t> count = element_count(shape);
  const std::uint64_t bytes_each = item_bytes(dtype);
  if (!count || static_cast<std::uint64_t>(*count) > kBytesMax / bytes_each) return kBytesMax;
  return static_cast<std::uint64_t>(*count) * bytes_each;
}

std::uint64_t tensor_bytes(const Catalog& catalog) {
  std::uint64_t sum = 0;
  for (const CatalogTensor& tensor : catalog.tensors) sum = sum_of_bytes(sum, tensor_bytes(tensor));
  return sum;
}

std::uint64_t sum_of_bytes(std::uint64_t a, std::uint64_t b) { return b > kBytesMax - a ? kBytesMax : a + b; }

std::string kind_text(DType dtype, const Extents& shape) {
  return fmt::format("{} {}", name_of(dtype), to_string(shape));
}

std::string kind_text(const CatalogTensor& tensor) { return kind_text(tensor.dtype, tensor.shape); }

void write_members(JsonWriter& json, const std::string& fqn, DType dtype, const Extents& shape) {
  json.key("key").text(fqn);
  json.key("kind").text("tensor");
  json.key("dtype").text(name_of(dtype));
  json.key("shape").begin_array();
  for (const std::int64_t size : shape.span()) json.number(size);
  json.end_array();
}

void write_members(JsonWriter& json, const CatalogTensor& tensor) {
  write_members(json, tensor.fqn, tensor.dtype, tensor.shape);
}

std::string summary_of(const Catalog& catalog) {
  return fmt::format("{} ({}, {}), {} of tensors", counted(catalog.keys.size(), "key"),
                     counted(catalog.tensors.size(), "tensor"), counted(catalog.values.size(), "value"),
                     byte_text(tensor_bytes(catalog)));
}

}  // namespace cairn::cli
