// KeyStream: the keys of an open checkpoint, in the order of the metadata, some at a time.
//
// One thread at a time; the checkpoint outlives the stream. Of a checkpoint from open_to_inspect() whose `.metadata`
// has a compact catalog, the stream decodes a block of the catalog at a time, and no chunks: memory does not grow with
// the number of keys.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/dtype.h>
#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {

// A key without chunks and places.
struct KeySummary {
  std::string fqn;
  bool is_tensor = false;
  DType dtype = DType::kFloat32;  // of a tensor
  Extents shape = {};             // of a tensor
  bool requires_grad = false;     // of a tensor
};

class KeyStream {
 public:
  explicit KeyStream(const Checkpoint& checkpoint) : checkpoint_(&checkpoint) {}

  // The next keys, valid until the next call; empty after the last key. From the first damaged block of the compact
  // catalog on, the keys come from the whole metadata, and Checkpoint::damage() says so.
  Result<std::span<const KeySummary>> next();

 private:
  Result<void> read_block();
  Result<void> take_from(const Catalog& catalog);

  const Checkpoint* checkpoint_;
  std::vector<KeySummary> batch_;
  std::size_t block_ = 0;     // of the compact catalog: the next
  std::uint64_t given_ = 0;   // keys so far
  bool reads_whole_ = false;  // the compact catalog is damaged
};

}  // namespace cairn
