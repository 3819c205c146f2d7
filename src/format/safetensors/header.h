// Header: the header of a safetensors file: the names, types, shapes and places of the file's tensors.
//
// A safetensors file is: the length of the header, 8 bytes, little-endian; the header, a JSON object, padded with
// spaces; the tensors' bytes, without gaps, row-major and little-endian. Values and pure functions, safe from any
// thread. A file is untrusted: read_header() accepts a file only if the tensors cover the bytes after the header
// exactly and each tensor has the length that its type, if known, and shape give. The names "__metadata__" and any name
// twice are refused.
#pragma once

#include "core/byte_source.h"
#include "format/safetensors/checksums.h"

#include <cairn/result.h>
#include <cairn/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn::safetensors {

inline constexpr std::uint64_t kLengthBytes = 8;
inline constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // of the JSON text; the format's own limit

struct Tensor {
  std::string name;
  DType dtype = DType::kFloat32;
  Extents shape;            // as torch counts: float4_e2m1fn_x2 has half as many elements in the last dimension as F4
  std::uint64_t begin = 0;  // bytes from the end of the header
  std::uint64_t end = 0;
  // Not empty: the format's name of a type without a DType (F6_E2M3, F6_E3M2). `dtype` then has no meaning, and `shape`
  // is the header's.
  std::string unread_type = {};
};

struct Header {
  std::vector<Tensor> tensors;                                // in the order of their bytes
  std::vector<std::pair<std::string, std::string>> metadata;  // of "__metadata__", in the file's order
  std::uint64_t data_offset = 0;                              // of the first tensor's bytes, in the file
  std::uint32_t checksum = 0;                                 // of the header's text, as it was read
  // Checksums of the tensors' bytes (checksums.h), if Cairn wrote the file; `metadata` then lacks their entry.
  std::optional<std::vector<std::uint32_t>> checksums;
};

// The number of checksums that the tensors have in a file of Cairn's.
ChecksumCoverage coverage_of(const std::vector<Tensor>& tensors);

// A tensor of a type without a DType leaves the others readable (Tensor::unread_type). kCorrupt for all that is wrong,
// with offset and key.
Result<Header> read_header(const ByteSource& file);

// The format's name of a type: "BF16". Nullopt for a type that the format lacks.
std::optional<std::string_view> type_name(DType dtype);

// The spaces at the end of a header: at least `spaces_min`, and then so many that the tensors begin at a multiple of
// `alignment`, a power of two of at least 8.
struct HeaderPadding {
  std::uint64_t alignment = 8;
  std::size_t spaces_min = 0;
};

// The bytes before the first tensor. Fails with kInvalidArgument for a name that is not UTF-8, is "__metadata__" or
// occurs twice, and with kUnsupported for a type that the format lacks and for a header above the limit. The tensors
// must be in the order of their bytes, without gaps.
Result<std::string> render_header(const Header& header, const HeaderPadding& padding = {});

}  // namespace cairn::safetensors
