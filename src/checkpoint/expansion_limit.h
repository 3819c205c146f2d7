// ExpansionLimit: bounds the bytes of the tensors of a checkpoint by the bytes of its files.
//
// A tensor of a torch.save file may repeat elements by strides of 0: a file of a few KiB could fill a disk, or keep a
// comparison busy for years. A small expanded tensor is common, and passes.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/result.h>

#include <cstdint>

namespace cairn::checkpointer {

// One thread at a time. The checkpoint outlives the limit.
class ExpansionLimit {
 public:
  // The elements of a torch.save file that strides of 0 repeat may have kTimesMax times the bytes of the file, or
  // kBytesFree bytes. A model may have a tensor under hundreds of names: all names together may have kNamedTimesMax
  // times the bytes of the file.
  static constexpr std::uint64_t kTimesMax = 64;
  static constexpr std::uint64_t kNamedTimesMax = 4096;
  static constexpr std::uint64_t kBytesFree = std::uint64_t{64} << 20;

  static Result<ExpansionLimit> of(const Checkpoint& checkpoint);

  // Call add() once for each tensor whose elements are to be read; `bytes` is their number. kUnsafe, for a torch.save
  // file, if all tensors so far have too many bytes. kCorrupt, for the other formats, if the chunks of the tensor
  // hold fewer bytes than the tensor's shape needs.
  Result<void> add(const CatalogTensor& tensor, std::uint64_t bytes);

 private:
  explicit ExpansionLimit(const Catalog& catalog) : catalog_(&catalog) {}

  const Catalog* catalog_;
  std::uint64_t repeated_max_ = UINT64_MAX;
  std::uint64_t named_max_ = UINT64_MAX;
  std::uint64_t repeated_ = 0;
  std::uint64_t named_ = 0;
};

}  // namespace cairn::checkpointer
