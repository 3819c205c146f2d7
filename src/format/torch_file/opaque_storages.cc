#include "format/torch_file/opaque_storages.h"

#include <span>
#include <utility>

#include "core/stored_elements.h"

namespace cairn::torch_file {
namespace {

// Part of the bytes that a later value is charged, which may read the storage again: the parameters of a model may be
// thousands of windows of one storage.
constexpr std::uint64_t kLaterShare = 64;

}  // namespace

Result<SharedArray> OpaqueStorages::read(const StorageNode& storage, ByteBudget& budget) const {
  const bool is_whole = storage.view_bytes == storage.bytes;
  const std::string key(storage.key);
  const std::lock_guard lock(mutex_);
  const auto known = known_.find(key);
  const bool is_known = is_whole && known != known_.end();
  if (auto charged = budget.charge(sizeof(Array) + storage.view_bytes / (is_known ? kLaterShare : 1)); !charged) {
    return std::move(charged).error().while_doing("reading a storage of " + std::to_string(storage.view_bytes) +
                                                  " bytes");
  }
  if (is_known) {
    if (SharedArray alive = known->second.lock()) return alive;
  }
  CAIRN_TRY_ASSIGN(SharedArray array, read_anew(storage));
  if (is_whole) known_[key] = array;
  return array;
}

Result<SharedArray> OpaqueStorages::read_anew(const StorageNode& storage) const {
  CAIRN_TRY_ASSIGN(const StoragePlace place, storages_.find(storage.key));
  CAIRN_TRY(check_storage_bytes(storage.key, storage.bytes, place.bytes));
  auto array = std::make_shared<Array>();
  array->kind = Array::Kind::kTensor;
  array->dtype = storage.dtype && !is_quantized(*storage.dtype) ? *storage.dtype : DType::kUInt8;
  const std::uint64_t item = item_bytes(array->dtype);
  array->shape = {static_cast<std::int64_t>(storage.view_bytes / item)};
  array->data.resize(storage.view_bytes);
  const std::span<std::byte> out = std::as_writable_bytes(std::span(array->data));
  if (!out.empty()) {
    const std::uint64_t element_bytes = storage.dtype ? item_bytes(*storage.dtype) : 1;
    CAIRN_TRY(storages_.read(storage.key, storage.view_offset * element_bytes, out));
  }
  if (big_endian_ && storage.dtype) swap_bytes(*storage.dtype, out);
  return SharedArray(std::move(array));
}

}  // namespace cairn::torch_file
