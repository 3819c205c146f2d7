// BucketPlace: a prefix of a bucket, with the store of the bucket: the keys of the names below the prefix, and the
// errors of the store by these names.
#pragma once

#include <cairn/result.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "storage/bucket/condition_trial.h"
#include "storage/bucket/object_store.h"
#include "storage/bucket/window_cache.h"

namespace cairn::storage {

// What the process remembers of a bucket.
struct BucketMemory {
  ConditionTrial trial;
  WindowCache windows;
};

struct BucketPlace {
  std::shared_ptr<ObjectStore> store;  // owned by the storages and files of the bucket
  // As `store`, and not stopped: for the removal of what a stopped save leaves.
  std::shared_ptr<ObjectStore> unstopped;
  std::shared_ptr<BucketMemory> memory;  // owned by the storages and files of the bucket
  std::string bucket;                    // "s3://bucket"
  std::string prefix;                    // without a '/' at its ends; may be empty

  std::string url() const { return prefix.empty() ? bucket : bucket + "/" + prefix; }
  // The key of a name; the empty name is the prefix itself.
  std::string key_of(std::string_view name) const;
  // The begin of the keys in a folder.
  std::string keys_in(std::string_view folder) const;
  // The place of a folder.
  BucketPlace below(std::string_view folder) const;

  // `error` of the store, as an error of the storage: names the file by `name`, and the URL of the place.
  Error explain(const Error& error, std::string_view name, std::string_view action) const;
};

// Creates an object that must not exist: kUnavailable and EEXIST if it does. An equal object is there after a lost
// answer: success.
Result<void> create_object(const BucketPlace& place, std::string_view name, std::span<const std::byte> bytes);

// kUnavailable and EEXIST.
Error name_is_taken(const BucketPlace& place, std::string_view name);

}  // namespace cairn::storage
