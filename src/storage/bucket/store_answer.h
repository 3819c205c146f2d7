// The answers of an object store: decoded from XML, and checked.
//
// Pure functions. An answer comes from outside: its size is bounded by the caller, and every decoder fails with kUnsafe
// for an answer that the protocol does not have. Elements of other names are skipped.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/bucket/bucket_address.h"
#include "storage/bucket/object_store.h"

namespace cairn::storage {

// <Error>: of a failed request, or in the body of a successful one.
struct StoreFault {
  std::string code;     // "NoSuchKey"; empty if the text is no such answer
  std::string message;  // printable ASCII, shortened
};
// Never fails: a proxy may answer with any text.
StoreFault decode_fault(std::string_view text);

// A page of ListObjectsV2. Each key is one that check_listed_key() accepts. `prefix` as in the request.
Result<ObjectPage> decode_listing(std::string_view text, std::string_view prefix, StoreDialect dialect);

// InitiateMultipartUpload: the id of the upload.
Result<std::string> decode_begun_upload(std::string_view text);

struct CompletedUpload {
  std::string tag;
  std::optional<std::uint32_t> crc32;  // of the whole object, if the store has it
};
Result<CompletedUpload> decode_completed_upload(std::string_view text);

struct UploadPage {
  std::vector<PendingUpload> uploads;
  bool has_more = false;
  std::string next_key;
  std::string next_upload;
};
Result<UploadPage> decode_upload_page(std::string_view text, std::string_view prefix);

struct PartPage {
  std::vector<UploadedPart> parts;
  bool has_more = false;
  std::uint32_t next_number = 0;
};
Result<PartPage> decode_part_page(std::string_view text);

// DeleteObjects: the first failure; nullopt if all objects are gone.
struct RemovalFault {
  std::string key;
  StoreFault fault;
};
Result<std::optional<RemovalFault>> decode_removals(std::string_view text);

// AssumeRoleWithWebIdentity.
struct TemporaryKeys {
  std::string access_key;
  std::string secret_key;
  std::string session_token;
  double expires_at = 0;  // seconds since the epoch
};
Result<TemporaryKeys> decode_assumed_role(std::string_view text);

// The entity tag with its quotes, which some servers leave out.
std::string quoted_tag(std::string_view tag);

// Refuses (kUnsafe) a key of a listing that does not begin with the asked prefix, has a part "..", or has control
// characters. A '/' at the end is the mark of a folder, which other programs make.
Result<void> check_listed_key(std::string_view key, std::string_view prefix);

// The CRC-32 in a header and in answers: base64 of four bytes, the most significant first. nullopt for other texts,
// also for the checksum of a multipart object that is not of its bytes ("abcd==-3").
std::string crc32_in_base64(std::uint32_t crc);
std::optional<std::uint32_t> crc32_of_base64(std::string_view text);

}  // namespace cairn::storage
