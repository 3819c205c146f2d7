// ConvertSource: reads the tensors of a conversion, piece by piece, in the order in which the target needs them.
//
// Thread-safe. Owns the open checkpoint: a thread that hangs in a read keeps the source alive.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/convert.h>
#include <cairn/result.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "checkpoint/checkpoint_impl.h"
#include "core/nested_shape.h"
#include "core/seeded_hash.h"
#include "data_file/conversion_losses.h"
#include "data_file/record_checks.h"
#include "data_file/tensor_reader.h"
#include "format/torch_file/state_file.h"
#include "os/page_buffer_pool.h"
#include "os/parallel.h"
#include "plan/chunk_index.h"

namespace cairn::checkpointer {

// A payload of the target: row-major elements, as `dtype`. `tensor` is of the source's catalog.
struct StreamedTensor {
  const CatalogTensor* tensor = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t first_element = 0;  // of the tensor, in row-major order; or of the record
  // Set: the elements are the record's, and `first_element` counts from its first byte. A record of elements that need
  // no change but the dtype's.
  bool of_record = false;
};

// The bytes of `tensor`, from byte `begin` on, that fill `out`. Both are multiples of the element's size.
struct StreamPart {
  const StreamedTensor* tensor = nullptr;
  std::uint64_t begin = 0;
  std::span<std::byte> out;
  bool is_ahead = false;  // another part has the bytes, too (PayloadPart::is_ahead): no checksum counts the bytes here
};

class ConvertSource {
 public:
  ConvertSource(Checkpoint checkpoint, const ConvertOptions& options);

  const Catalog& catalog() const { return checkpoint_.catalog(); }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const LoadOptions& load_options() const { return load_options_; }

  // The stored elements of the only chunk of a tensor.
  struct Stored {
    const data_file::DataFile* file;
    StoredTensor tensor;
  };
  Result<Stored> stored(const CatalogTensor& tensor, std::size_t chunk) const;

  // Fills all parts, with few requests for parts that are neighbours in the source.
  Result<void> read(std::span<const StreamPart> parts);
  // What the conversions of read() have lost, by the keys of the source.
  std::map<std::string, ConversionLoss, std::less<>> losses() const { return losses_.by_key(); }
  // What the flat keys lose of the nested state. kCorrupt for a damaged value under kNestedShapeKey.
  Result<NestedShape> shape() const;
  // The tensors inside the values of a file of torch.save; none for the other formats.
  Result<std::vector<torch_file::StateFile::InnerTensor>> inner_tensors() const;
  // The shape of the state in a directory of torch_checkpointing.
  Result<NestedShape> shape_of_items() const;
  // The file of torch.save; null for a source of any other format.
  const torch_file::StateFile* torch_file() const;
  // Whether read() has read of the record at this place of the source's only file.
  bool was_read(std::uint64_t record_offset) const;
  // The bytes that read() has filled.
  std::uint64_t bytes_done() const { return bytes_done_.load(std::memory_order_relaxed); }

  // After the last read(): checks the records of which the reads needed only parts, and which have only a checksum of
  // the whole. With Verify::kFull these records are read whole.
  Result<void> finish(std::size_t thread_count);

  // All reads end soon with kCancelled.
  void stop() { stop_.set(); }
  // kCancelled after stop().
  Result<void> check_not_stopped() const;

  // kReplaced in place of an error that a save into the source explains.
  Error explain(Error error) const;

 private:
  // A tensor whose chunks are found and described once for many reads.
  struct OpenTensor {
    explicit OpenTensor(const CatalogTensor& tensor) : index(tensor) {}
    plan::ChunkIndex index;
    std::mutex mutex;
    std::unordered_map<std::size_t, Stored> chunks;
  };
  struct PlannedReads {
    std::vector<data_file::TensorRead> reads;
    // Of the parts ahead, from records that have only a checksum of the whole.
    std::vector<data_file::TensorRead> uncounted;
    // The remaining reads of parts ahead. They join `reads`, and share requests with their neighbours; only the parts
    // that are not ahead count what a conversion loses.
    std::vector<data_file::TensorRead> ahead;
    void add(data_file::TensorRead read, bool is_ahead);
  };
  std::shared_ptr<OpenTensor> open(const CatalogTensor& tensor);
  void note_read(const StoredTensor& stored);
  Result<void> plan(const StreamPart& part, PlannedReads& planned);
  Result<void> plan_record(const StreamPart& part, PlannedReads& planned);
  Result<void> carry_out(const std::vector<data_file::TensorRead>& reads, data_file::RecordChecks* checks,
                         std::size_t counted_reads);

  Checkpoint checkpoint_;
  LoadOptions load_options_;
  Verify verify_;
  std::atomic<std::uint64_t> bytes_done_{0};
  os::StopFlag stop_;
  os::PageBufferPool buffers_{data_file::kReadBufferBytes};
  data_file::RecordChecks checks_{stop_};
  data_file::ConversionLosses losses_;

  mutable std::mutex mutex_;                                    // of all below
  std::unordered_set<std::uint64_t, SeededHash> read_records_;  // by offset
  // The tensors used last, the latest first.
  std::list<std::pair<const CatalogTensor*, std::shared_ptr<OpenTensor>>> recent_;
};

}  // namespace cairn::checkpointer
