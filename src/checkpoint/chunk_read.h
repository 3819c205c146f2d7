// The read of a part of a saved chunk into the memory of a caller.
#pragma once

#include <cairn/catalog.h>
#include <cairn/tensor.h>

#include "data_file/read_pieces.h"
#include "plan/chunk_index.h"

namespace cairn::checkpointer {

// Memory for the elements of `box`, in the tensor's coordinates; `view` has the box's sizes.
struct BoxMemory {
  const TensorView& view;
  const Box& box;
};

// The read of `item`, a part of `tensor` that lies in the box of `memory`. `stored` is the item's chunk in `file`.
// File, tensor and memory outlive the read.
data_file::TensorRead chunk_read(const CatalogTensor& tensor, const plan::ReadItem& item, const BoxMemory& memory,
                                 const data_file::DataFile& file, StoredTensor stored);

}  // namespace cairn::checkpointer
