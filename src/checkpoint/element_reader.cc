#include "checkpoint/element_reader.h"

#include <algorithm>
#include <utility>

#include "data_file/tensor_reader.h"

namespace cairn::checkpointer {
Result<ElementReader> ElementReader::open(Checkpoint::Impl& impl, const CatalogTensor& tensor, bool follow_links) {
  ElementReader reader(tensor);
  CAIRN_TRY_ASSIGN(const Box whole, Box::whole(tensor.shape));
  CAIRN_TRY(reader.index_.reads_for(whole));
  if (whole.element_count() == 0) return reader;
  reader.chunks_.resize(tensor.chunk_count());
  for (std::size_t i = 0; i < tensor.chunk_count(); ++i) {
    if (tensor.chunk(i).element_count() == 0) continue;
    Chunk& chunk = reader.chunks_[i];
    CAIRN_TRY_ASSIGN(chunk.file, impl.file_of(tensor.locations[i], tensor.fqn, follow_links));
    CAIRN_TRY_ASSIGN(chunk.stored, chunk.file->tensor(tensor, i));
  }
  return reader;
}

std::int64_t ElementReader::elements_per_read(std::size_t bytes_max) const {
  const std::size_t bytes_each = item_bytes(tensor_->dtype);
  const auto most = static_cast<std::int64_t>(std::max<std::size_t>(bytes_max / bytes_each, 1));
  if (tensor_->shape.empty() || chunks_.size() <= 1) return most;
  const std::int64_t row = row_major_strides(tensor_->shape)[0];
  return row <= most ? most / row * row : most;
}

Result<void> ElementReader::plan(plan::FlatRange range, std::byte* target,
                                 std::vector<data_file::TensorRead>& reads) const {
  for (const Box& box : plan::boxes_of(tensor_->shape, range)) {
    const TensorView view = TensorView::contiguous(target, tensor_->dtype, box.sizes());
    CAIRN_TRY_ASSIGN(const std::vector<plan::ReadItem> items, index_.reads_for(box));
    for (const plan::ReadItem& item : items) {
      const Chunk& chunk = chunks_[item.chunk];
      reads.push_back(chunk_read(*tensor_, item, {view, box}, *chunk.file, chunk.stored));
    }
    target += static_cast<std::size_t>(box.element_count()) * item_bytes(tensor_->dtype);
  }
  return {};
}

Result<void> ElementReader::read(const std::vector<data_file::TensorRead>& reads, data_file::RecordChecks& checks,
                                 os::PageBuffer* buffer) {
  data_file::ReadOptions options;
  options.verify = Verify::kNeeded;
  options.thread_count = 1;
  options.checks = &checks;
  options.buffer = buffer;
  const Result<data_file::ReadCounts> counts = data_file::read_tensors(reads, options);
  if (!counts) return counts.error();
  return {};
}

Result<void> ElementReader::read(plan::FlatRange range, std::byte* target, data_file::RecordChecks& checks) const {
  std::vector<data_file::TensorRead> reads;
  CAIRN_TRY(plan(range, target, reads));
  return read(reads, checks);
}

}  // namespace cairn::checkpointer
