// BucketReadableFile: an object of a bucket, open for reading.
#pragma once

#include <cairn/result.h>

#include <memory>
#include <string_view>

#include "storage/bucket/bucket_place.h"
#include "storage/storage.h"

namespace cairn::storage {

// Reads go to the version of the object at the opening: kUnavailable if another object has the name, kNotFound if no
// object has. A large range is read by several requests at a time.
Result<std::unique_ptr<ReadableFile>> open_bucket_file(const BucketPlace& place, std::string_view name);

}  // namespace cairn::storage
