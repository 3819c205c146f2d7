// BucketWritableFile: a new object of a bucket, collected into parts. The object appears with finish().
//
// 1. A file of at most one part is kept in memory, and finish() writes it in one request, with the condition that the
//    name is free.
// 2. A larger file is a multipart upload. A write that covers whole parts is sent from the memory of the caller. Other
//    writes are copied into the buffer of their part, which is sent by the thread that fills it. The buffers hold the
//    parts that are neither empty nor complete.
// 3. Parts with bytes that the caller writes twice (CreateOptions::rewritten_bytes) are kept until finish(), and so is
//    the first part of a file whose size the caller does not know.
// 4. Destruction without a successful finish() aborts the upload.
#pragma once

#include <cairn/result.h>

#include <memory>
#include <string_view>

#include "storage/bucket/bucket_place.h"
#include "storage/storage.h"

namespace cairn::storage {

// kUnavailable and EEXIST if the name is taken; for a file of (1) finish() fails so.
Result<std::unique_ptr<WritableFile>> create_bucket_file(const BucketPlace& place, std::string_view name,
                                                         const CreateOptions& options);

}  // namespace cairn::storage
