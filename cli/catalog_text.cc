#include "catalog_text.h"

#include <fmt/format.h>

#include <limits>

#include "printable.h"

namespace cairn::cli {
namespace {

constexpr std::uint64_t kBytesMax = std::numeric_limits<std::uint64_t>::max();

}  // namespace

std::uint64_t tensor_bytes(const CatalogTensor& tensor) {
  const Result<std::int64_t> count = element_count(tensor.shape);
  const std::uint64_t bytes_each = item_bytes(tensor.dtype);
  if (!count || static_cast<std::uint64_t>(*count) > kBytesMax / bytes_each) return kBytesMax;
  return static_cast<std::uint64_t>(*count) * bytes_each;
}

std::uint64_t tensor_bytes(const Catalog& catalog) {
  std::uint64_t sum = 0;
  for (const CatalogTensor& tensor : catalog.tensors) sum = sum_of_bytes(sum, tensor_bytes(tensor));
  return sum;
}

std::uint64_t sum_of_bytes(std::uint64_t a, std::uint64_t b) { return b > kBytesMax - a ? kBytesMax : a + b; }

std::string kind_text(const CatalogTensor& tensor) {
  return fmt::format("{} {}", name_of(tensor.dtype), to_string(tensor.shape));
}

void write_members(JsonWriter& json, const CatalogTensor& tensor) {
  json.key("key").text(tensor.fqn);
  json.key("kind").text("tensor");
  json.key("dtype").text(name_of(tensor.dtype));
  json.key("shape").begin_array();
  for (const std::int64_t size : tensor.shape.span()) json.number(size);
  json.end_array();
}

std::string summary_of(const Catalog& catalog) {
  return fmt::format("{} ({}, {}), {} of tensors", counted(catalog.keys.size(), "key"),
                     counted(catalog.tensors.size(), "tensor"), counted(catalog.values.size(), "value"),
                     byte_text(tensor_bytes(catalog)));
}

}  // namespace cairn::cli
