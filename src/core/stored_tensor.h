// StoredTensor: the elements of a tensor in a file, as a window of a record.
#pragma once

#include <cairn/tensor.h>

#include <cstdint>
#include <optional>
#include <span>

#include "core/checksum.h"

namespace cairn {

// A reader of a file has checked that the window lies in the record, and the record in the file.
struct StoredTensor {
  DType dtype = DType::kFloat32;
  Extents sizes;
  Extents strides;                  // in elements, not negative
  std::uint64_t record_offset = 0;  // of the record's first byte, in bytes from the start of the file or of the archive
  std::uint64_t record_bytes = 0;   // of the whole record
  std::uint64_t first_element = 0;  // in elements, from record_offset
  std::span<const std::uint32_t> block_crcs;  // for each block of the record, if Cairn wrote the file
  std::uint64_t block_bytes = kChecksumBlockBytes;
  std::optional<std::uint32_t> record_crc;  // of the whole record, if the file has no CRC per block
  bool requires_grad = false;               // as a torch.save archive says
  // Conversions that the stored elements need. Only files of torch need any.
  bool big_endian = false;
  bool conjugate = false;  // the tensor is the complex conjugate of the stored elements
  bool negative = false;   // the tensor is the negative of the stored elements
  bool is_final() const { return !big_endian && !conjugate && !negative; }

  // Whether the elements are row-major and without gaps from first_element on.
  bool contiguous() const;
};

}  // namespace cairn
