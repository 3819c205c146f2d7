// read_tensor_item: the tensor in a torch.save archive, and the place of the tensor's bytes.
//
// Pure and inert. Reads archives of stock torch (1.6 and later) and of Cairn. Reads only directory, headers and pickle,
// never the payload. Errors are kCorrupt for damage, and kUnsupported for archives that hold anything but one strided
// tensor.
#pragma once

#include "core/byte_source.h"

#include <cairn/box.h>
#include <cairn/dtype.h>
#include <cairn/result.h>

#include <cstdint>
#include <optional>

namespace cairn::torch_file {

// A tensor as a window of a storage record. read_tensor_item() has checked that the window lies in the record.
struct TensorRecord {
  DType dtype = DType::kFloat32;
  Extents sizes;
  Extents strides;                   // in elements, not negative
  std::uint64_t storage_offset = 0;  // of the first element in the record, in elements
  std::uint64_t payload_offset = 0;  // of the record's first byte, from the start of the item
  std::uint64_t payload_bytes = 0;   // of the whole record
  std::optional<std::uint32_t> crc;  // of the whole record; nullopt if the writer did not compute the CRC
  bool big_endian = false;           // the record's elements are in big-endian byte order
  bool conjugate = false;            // the tensor is the complex conjugate of the stored elements
  bool negative = false;             // the tensor is the negative of the stored elements
  bool requires_grad = false;

  // Whether the elements are row-major and without gaps from storage_offset on.
  bool contiguous() const;
};

Result<TensorRecord> read_tensor_item(const ByteSource& item);

}  // namespace cairn::torch_file
