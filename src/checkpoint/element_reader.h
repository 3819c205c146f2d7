// ElementReader: reads ranges of a tensor's elements, in row-major order and verified, whatever chunks, strides and
// files hold the elements.
//
// For passes over tensors of any size with bounded memory (conversion, comparison, statistics).
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstddef>
#include <vector>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/chunk_read.h"
#include "data_file/read_pieces.h"
#include "data_file/record_checks.h"
#include "os/page_buffer.h"
#include "plan/chunk_index.h"
#include "plan/flat_range.h"

namespace cairn::checkpointer {

// Thread-safe. Memory: a few hundred bytes per chunk of the tensor.
class ElementReader {
 public:
  // Opens the files of the tensor, which belongs to the catalog of `impl`. kCorrupt if the chunks do not make up the
  // tensor, or if a file contradicts the catalog; kUnsupported if the tensor is stored in a form that only torch reads
  // (quantised), or went through stream transforms. `impl` outlives the reader and its reads.
  static Result<ElementReader> open(Checkpoint::Impl& impl, const CatalogTensor& tensor, bool follow_links = false);

  const CatalogTensor& tensor() const { return *tensor_; }
  // The number of elements to ask for at a time: at most `bytes_max` bytes, but at least one element. If the tensor has
  // several chunks, a multiple of a row if a row has at most `bytes_max` bytes: the parts of a chunk are then longer.
  std::int64_t elements_per_read(std::size_t bytes_max) const;

  // Appends the reads that fill `target` with the elements of the range, in the tensor's dtype. Small ranges of several
  // tensors can share a call of read().
  Result<void> plan(plan::FlatRange range, std::byte* target, std::vector<data_file::TensorRead>& reads) const;

  // Carries out the reads on the calling thread. kCorrupt with key, file and offset if a checksum differs. Records with
  // a single checksum, of which the reads need parts, are left to `checks`: the caller calls RecordChecks::finish()
  // after the last read, and believes no element before. `buffer`, if given, is used instead of a buffer of the call's
  // own, and has at least data_file::kReadBufferBytes.
  static Result<void> read(const std::vector<data_file::TensorRead>& reads, data_file::RecordChecks& checks,
                           os::PageBuffer* buffer = nullptr);

  // plan() and read().
  Result<void> read(plan::FlatRange range, std::byte* target, data_file::RecordChecks& checks) const;

 private:
  struct Chunk {
    const data_file::DataFile* file = nullptr;
    StoredTensor stored;
  };
  explicit ElementReader(const CatalogTensor& tensor) : tensor_(&tensor), index_(tensor) {}

  const CatalogTensor* tensor_;
  plan::ChunkIndex index_;
  std::vector<Chunk> chunks_;  // of a tensor without elements: empty
};

}  // namespace cairn::checkpointer
