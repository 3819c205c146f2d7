// S3Client: the ObjectStore of s3:// and gs:// addresses, over HTTP.
//
// Each call runs on its caller's thread with a connection of its own, which is kept for later calls. Calls on several
// threads add up.
//
// The tags of an Amazon store are entity tags, and those of a Google store generations: both name one content of an
// object, and go into conditions as they are.
//
// A Google store has no CRC-32 and no removal of several objects in one request: its uploads carry no checksum, and
// remove_all() sends a request for each object.
#pragma once

#include <cairn/result.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/bucket/bucket_address.h"
#include "storage/bucket/bucket_settings.h"
#include "storage/bucket/object_store.h"
#include "storage/bucket/store_exchange.h"

namespace cairn::storage {

class S3Client : public ObjectStore {
 public:
  // The bucket of the address; its prefix is the caller's to add to keys. Reads the settings and the keys for the store
  // (bucket_settings.h, bucket_credentials.h), and sends nothing yet.
  static Result<std::unique_ptr<S3Client>> open(const BucketAddress& address, const StoreOptions& options = {},
                                                const Environment& environment = process_environment());

  Result<ObjectVersion> describe(std::string_view key) override;
  Result<ObjectVersion> read(std::string_view key, std::uint64_t offset, std::span<std::byte> target,
                             std::string_view tag = {}) override;
  Result<Content> read_whole(std::string_view key, std::uint64_t bytes_max) override;
  Result<WriteOutcome> write(std::string_view key, std::span<const std::byte> bytes,
                             const WriteCondition& condition = {}) override;

  Result<std::string> begin_upload(std::string_view key) override;
  Result<UploadedPart> upload_part(std::string_view key, std::string_view upload_id, std::uint32_t number,
                                   std::span<const std::span<const std::byte>> pieces) override;
  Result<ObjectVersion> complete_upload(std::string_view key, std::string_view upload_id,
                                        std::span<const UploadedPart> parts, std::uint64_t size) override;
  Result<void> abort_upload(std::string_view key, std::string_view upload_id) override;
  Result<std::vector<PendingUpload>> pending_uploads(std::string_view prefix) override;
  Result<std::vector<UploadedPart>> uploaded_parts(std::string_view key, std::string_view upload_id) override;

  Result<void> remove(std::string_view key) override;
  Result<void> remove_all(std::span<const std::string> keys) override;
  Result<WriteOutcome> remove_if(std::string_view key, const std::string& tag) override;

  Result<ObjectPage> list(std::string_view prefix, bool by_folder, std::string_view next = {},
                          std::uint32_t count_max = 1000) override;

  Result<double> now() override;
  // A client with connections of its own. Null if the settings have become wrong meanwhile.
  std::shared_ptr<ObjectStore> with_stop(std::shared_ptr<const os::StopFlag> stop) override;

 private:
  struct Described {
    ObjectVersion version;
    std::string checksum;  // "x-amz-checksum-crc32"
  };
  // The checksums of a multipart upload that the store takes. Falls if the store refuses.
  enum class UploadChecksum : int { kNone, kOfParts, kOfObject };

  S3Client(std::unique_ptr<StoreExchange> exchange, const StoreOptions& options, Environment environment)
      : exchange_(std::move(exchange)), options_(options), environment_(std::move(environment)) {}
  bool is_google() const { return exchange_->address().dialect == StoreDialect::kGoogle; }
  Result<Described> describe_with_checksum(std::string_view key);
  Result<ObjectVersion> version_in(const HttpHead& head) const;
  std::string tag_in(const HttpHead& head) const;
  HttpHeader tag_condition(std::string_view tag) const;
  Result<WriteOutcome> send_conditional(StoreRequest request, const WriteCondition& condition);
  Result<void> remove_batch(std::span<const std::string> keys, bool& is_refused);
  Result<ObjectVersion> object_of_lost_upload(const Error& error, std::string_view key,
                                              std::span<const UploadedPart> parts, std::uint64_t size);

  std::unique_ptr<StoreExchange> exchange_;
  StoreOptions options_;     // of open(), for clients with a stop flag
  Environment environment_;  // as options_
  std::atomic<UploadChecksum> upload_checksum_{UploadChecksum::kOfObject};
  std::atomic<bool> removes_batches_{true};
};

}  // namespace cairn::storage
