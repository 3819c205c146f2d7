// What commands say about the entries of a catalog.
#pragma once

#include <cairn/catalog.h>

#include <cstdint>
#include <string>

namespace cairn::cli {

// Bytes of all elements. Saturates on a shape that no memory could hold.
std::uint64_t tensor_bytes(const CatalogTensor& tensor);

// Of all tensors.
std::uint64_t tensor_bytes(const Catalog& catalog);

// The sum of both. Saturates.
std::uint64_t sum_of_bytes(std::uint64_t a, std::uint64_t b);

// "float32 [2, 3]"
std::string kind_text(const CatalogTensor& tensor);

// "12 keys (10 tensors, 2 values), 1.5 MiB of tensors"
std::string summary_of(const Catalog& catalog);

}  // namespace cairn::cli
