// ObjectStore: the objects of one bucket, by the operations that an S3-compatible store has.
//
// Keys are those of the bucket: a caller adds its prefix. A store has no rename, no lock and no folders. An object
// appears whole or not at all, and each content of an object has an entity tag. Writes with a condition on the tag are
// the only operation by which two writers can agree.
//
// Thread-safe. A call retries failures that may pass (a lost connection, 500, 503, 429) until its deadline, which is
// judged by progress. Errors name the key and never a credential. kNotFound: no such object, upload or bucket.
// kUnavailable: the store refused, or did not answer in time. kUnsafe: an answer that a store of this protocol never
// gives. kCorrupt: received bytes differ from their checksum. kCancelled: the stop flag of the store was set.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "os/parallel.h"
#include "storage/conditional_write.h"

namespace cairn::storage {

// An object at a moment, as a store describes it in an answer.
struct ObjectVersion {
  std::string tag;         // the entity tag with its quotes, for conditions
  std::uint64_t size = 0;  // of the whole object, in bytes
  double changed_at = 0;   // Last-Modified: seconds since the epoch, by the clock of the store, whole seconds
};

struct UploadedPart {
  std::uint32_t number = 0;  // from 1
  std::string tag;
  std::uint64_t size = 0;              // bytes
  std::optional<std::uint32_t> crc32;  // of the part's bytes; nullopt: the store did not tell
};

struct ListedObject {
  std::string key;
  ObjectVersion version;
};

struct ObjectPage {
  std::vector<ListedObject> objects;
  std::vector<std::string> folders;  // common prefixes up to the delimiter '/', each with it at its end
  std::string next;                  // the token of the next page; empty: this is the last page
};

struct PendingUpload {
  std::string key;
  std::string upload_id;
  double begun_at = 0;  // by the clock of the store
};

class ObjectStore {
 public:
  // Of a multipart upload: the bytes of each part but the last are at least kPartBytesMin, and the parts at most
  // kPartCountMax.
  static constexpr std::uint64_t kPartBytesMin = 5 << 20;
  static constexpr std::uint32_t kPartCountMax = 10'000;

  virtual ~ObjectStore() = default;

  // The same store, whose calls fail with kCancelled soon after `stop` is set. Null: the store can't cancel a call.
  virtual std::shared_ptr<ObjectStore> with_stop(std::shared_ptr<const os::StopFlag> /*stop*/) { return nullptr; }

  virtual Result<ObjectVersion> describe(std::string_view key) = 0;
  // Fills `target` from `offset` on. With a `tag`, only of the object with the tag: kReplaced for a different object.
  // kCorrupt if the range is not inside the object.
  virtual Result<ObjectVersion> read(std::string_view key, std::uint64_t offset, std::span<std::byte> target,
                                     std::string_view tag = {}) = 0;
  struct Content {
    std::string bytes;
    ObjectVersion version;
  };
  // The whole of a small object, in one request; kCorrupt if it is larger than `bytes_max`.
  virtual Result<Content> read_whole(std::string_view key, std::uint64_t bytes_max) = 0;

  // Writes a small object in one request, with the CRC-32 of its bytes. kWritten, or an error: never kUnknown without a
  // condition.
  virtual Result<WriteOutcome> write(std::string_view key, std::span<const std::byte> bytes,
                                     const WriteCondition& condition = {}) = 0;

  // A multipart upload: begun, its parts sent in any order by any threads, completed. The object appears with the
  // completion, which replaces an object of the key. A part with a used number replaces the earlier part.
  virtual Result<std::string> begin_upload(std::string_view key) = 0;
  // `pieces` are the part's bytes, in order; they stay unchanged until the call returns.
  virtual Result<UploadedPart> upload_part(std::string_view key, std::string_view upload_id, std::uint32_t number,
                                           std::span<const std::span<const std::byte>> pieces) = 0;
  // `parts` in the order of their numbers; `size` in bytes, of all parts. After a lost answer compares the size of the
  // object in place.
  virtual Result<ObjectVersion> complete_upload(std::string_view key, std::string_view upload_id,
                                                std::span<const UploadedPart> parts, std::uint64_t size) = 0;
  virtual Result<void> abort_upload(std::string_view key, std::string_view upload_id) = 0;  // missing: no error
  virtual Result<std::vector<PendingUpload>> pending_uploads(std::string_view prefix) = 0;
  // The parts that the store has of an upload.
  virtual Result<std::vector<UploadedPart>> uploaded_parts(std::string_view key, std::string_view upload_id) = 0;

  // Missing objects are no error. remove_all() takes any number of keys, and sends them in batches of 1,000.
  virtual Result<void> remove(std::string_view key) = 0;
  virtual Result<void> remove_all(std::span<const std::string> keys) = 0;
  // Removes only the object with the tag.
  virtual Result<WriteOutcome> remove_if(std::string_view key, const std::string& tag) = 0;

  // A page of at most `count_max` (1 to 1,000) names that begin with `prefix`, in the order of their bytes, after the
  // page with the token `next`. With `by_folder`, keys with a '/' behind the prefix appear as their folder alone.
  virtual Result<ObjectPage> list(std::string_view prefix, bool by_folder, std::string_view next = {},
                                  std::uint32_t count_max = 1000) = 0;

  // The time by the clock of the store, from the Date of the last answer: seconds since the epoch. Asks the store if
  // it has not answered yet.
  virtual Result<double> now() = 0;
};

}  // namespace cairn::storage
