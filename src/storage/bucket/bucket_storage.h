// BucketStorage: a prefix of a bucket as a directory.
//
// A bucket has no folders, no links, no rename and no lock. A folder is there while an object is below it: making and
// removing a folder do nothing. An object appears whole, and is durable when the write returns: sync() does nothing.
// The opening asks nothing of the store.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/bucket/bucket_place.h"
#include "storage/storage.h"

namespace cairn::storage {

class BucketStorage final : public Storage {
 public:
  // `bucket`: "s3://name", for errors. `prefix`: of the keys, without a '/' at its ends; empty: all of the bucket. The
  // store and the memory are shared by the storages and files of the bucket.
  BucketStorage(std::shared_ptr<ObjectStore> store, std::string bucket, std::string prefix,
                std::shared_ptr<BucketMemory> memory = std::make_shared<BucketMemory>());

  Result<std::unique_ptr<StorageLock>> lock() override { return std::unique_ptr<StorageLock>(); }
  // All calls but remove() end with kCancelled soon after `stop` is set, if the store can.
  void set_stop(std::shared_ptr<const os::StopFlag> stop) override;
  Result<void> make_folder(std::string_view name) override;
  Result<void> join_folder(std::string_view name) override;
  Result<void> remove_folder(std::string_view name) override;
  Result<std::unique_ptr<WritableFile>> create(std::string_view name, const CreateOptions& options) override;
  Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) override;
  Result<std::unique_ptr<ReadableFile>> open(std::string_view name, bool follow_links) const override;
  Result<std::vector<ListedFile>> list(std::string_view folder) const override;
  Result<void> publish(std::string_view from, std::string_view to) override;
  Result<void> replace(std::string_view from, std::string_view to) override;
  Result<void> remove(std::string_view name) override;
  Result<void> sync(std::string_view /*folder*/) override { return {}; }
  // Of small objects. Each writes a new version of the object if the version that the call read is still in place.
  Result<void> rewrite(std::string_view name, std::string_view bytes) override;
  Result<void> touch(std::string_view name) override;
  // Of a folder: the time of its first object. Whole seconds.
  Result<double> touched_at(std::string_view name) const override;
  Result<std::unique_ptr<Storage>> open_parent() const override;
  Result<std::unique_ptr<Storage>> open_folder(std::string_view name) const override;
  Result<void> move_folder(std::string_view from, std::string_view to) override;
  Result<void> exchange_folders(std::string_view one, std::string_view two) override;
  Result<bool> can_exchange_folders() override { return false; }
  bool has_rename() const override { return false; }
  std::uint64_t preferred_write_bytes(std::uint64_t file_bytes) const override;
  Result<TaggedContent> read_tagged(std::string_view name, std::uint64_t bytes_max) const override;
  Result<WriteOutcome> write_if(std::string_view name, std::string_view bytes,
                                const WriteCondition& condition) override;
  Result<WriteOutcome> remove_if(std::string_view name, const std::string& tag) override;
  Result<double> now() const override;
  Result<bool> keeps_conditions() override;
  Result<void> abandon_writes(const std::function<bool(std::string_view name)>& is_abandoned) override;
  std::vector<Error> remove_all(std::span<const std::string> names) override;

 private:
  explicit BucketStorage(BucketPlace place) : place_(std::move(place)) {}
  // The first object of a folder; kNotFound if there is none.
  Result<ListedObject> first_object_in(std::string_view folder, std::string_view action) const;
  // Writes `bytes` over the begin of the object. Without `bytes`: the object's own.
  Result<void> write_again(std::string_view name, std::string_view bytes, std::string_view action);

  BucketPlace place_;
};

}  // namespace cairn::storage
