#include "checkpoint/chunk_read.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace cairn::checkpointer {

data_file::TensorRead chunk_read(const CatalogTensor& tensor, const plan::ReadItem& item, const BoxMemory& memory,
                                 const data_file::DataFile& file, StoredTensor stored) {
  const Box saved = tensor.chunk(item.chunk);
  Extents in_chunk = item.overlap.offsets();
  TensorView part = memory.view;
  part.sizes = item.overlap.sizes();
  std::int64_t first = 0;
  for (std::size_t i = 0; i < in_chunk.size(); ++i) {
    first += (item.overlap.offsets()[i] - memory.box.offsets()[i]) * part.strides[i];
    in_chunk[i] -= saved.offsets()[i];
  }
  part.data = static_cast<std::byte*>(part.data) + first * static_cast<std::int64_t>(item_bytes(part.dtype));
  return {file, tensor.fqn, std::move(stored), in_chunk, std::move(part)};
}

}  // namespace cairn::checkpointer
