// read_tensor_item: the tensor in a torch.save archive, and the place of the tensor's bytes.
//
// Pure and inert. Reads archives of stock torch (1.6 and later) and of Cairn. Reads only directory, headers and pickle,
// never the payload. Errors are kCorrupt for damage, and kUnsupported for archives that hold anything but one strided
// tensor.
#pragma once

#include "core/byte_source.h"
#include "core/stored_tensor.h"

#include <cairn/result.h>

namespace cairn::torch_file {

// record_offset counts from the start of the item.
Result<StoredTensor> read_tensor_item(const ByteSource& item);

}  // namespace cairn::torch_file
