// The buckets of the process: each bucket has one client, whose connections all storages and files share.
//
// Thread-safe. A child made by fork has clients of its own.
#pragma once

#include <cairn/result.h>

#include <memory>
#include <string>

#include "storage/bucket/object_store.h"
#include "storage/storage.h"

namespace cairn::storage {

// The storage of "s3://bucket/prefix" or "gs://bucket/prefix". Asks nothing of the store. kInvalidArgument for a URL
// that names no bucket, and for settings in the environment that are not understood.
Result<std::unique_ptr<Storage>> open_bucket(const std::string& url);

// From now on the process reaches `bucket` ("s3://bucket") through `store`. Null: through a client again. For tests.
void use_store(const std::string& bucket, std::shared_ptr<ObjectStore> store);

}  // namespace cairn::storage
