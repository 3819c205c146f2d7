// Texts of the commands about the entries of a catalog.
#pragma once

#include <cairn/catalog.h>

#include <cstdint>
#include <string>

#include "json_writer.h"

namespace cairn::cli {

// Bytes of all elements. Saturates for a shape larger than any memory.
std::uint64_t tensor_bytes(DType dtype, const Extents& shape);
std::uint64_t tensor_bytes(const CatalogTensor& tensor);

// Bytes of all tensors. Saturates.
std::uint64_t tensor_bytes(const Catalog& catalog);

// The sum of both arguments. Saturates.
std::uint64_t sum_of_bytes(std::uint64_t a, std::uint64_t b);

// "float32 [2, 3]"
std::string kind_text(DType dtype, const Extents& shape);
std::string kind_text(const CatalogTensor& tensor);

// Writes the members "key", "kind", "dtype" and "shape" into the open object.
void write_members(JsonWriter& json, const std::string& fqn, DType dtype, const Extents& shape);
void write_members(JsonWriter& json, const CatalogTensor& tensor);

// "12 keys (10 tensors, 2 values), 1.5 MiB of tensors"
std::string summary_of(const Catalog& catalog);

}  // namespace cairn::cli
