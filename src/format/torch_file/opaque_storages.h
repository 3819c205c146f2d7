// OpaqueStorages: the whole storages that objects of unknown classes name. Each storage is read once, and shared by all
// values that name it while one of them lives.
//
// Thread-safe.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "core/byte_budget.h"
#include "core/seeded_hash.h"
#include "format/torch_file/checked_storages.h"
#include "format/torch_file/tensor_node.h"

namespace cairn::torch_file {

class OpaqueStorages {
 public:
  // `storages` outlives this.
  OpaqueStorages(const CheckedStorages& storages, bool big_endian) : storages_(storages), big_endian_(big_endian) {}

  // Before the first read.
  void set_big_endian(bool big_endian) { big_endian_ = big_endian; }
  // The elements as an Array of one dimension: of the class's dtype, or of uint8 for a class that counts bytes and for
  // a quantised class. Charges the budget for the bytes of a storage that is new, and for a share of the bytes of any
  // other. kCorrupt for a record of the wrong size, and if the CRC differs.
  Result<SharedArray> read(const StorageNode& storage, ByteBudget& budget) const;

 private:
  Result<SharedArray> read_anew(const StorageNode& storage) const;

  const CheckedStorages& storages_;
  bool big_endian_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, std::weak_ptr<const Array>, SeededHash> known_;  // whole storages, by key
};

}  // namespace cairn::torch_file
