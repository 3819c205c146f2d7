// The requests of S3Client with XML in their bodies: multipart uploads and removals of many objects.
#include <cassert>
#include <span>
#include <utility>

#include "core/checksum.h"
#include "storage/bucket/s3_client.h"
#include "storage/bucket/store_time.h"

namespace cairn::storage {
namespace {

constexpr std::size_t kRemovalsMax = 1000;  // of a request
constexpr int kPagesMax = 10'000;           // of a listing of uploads or parts

std::string doing_upload(std::string_view action, std::string_view key) {
  return std::string(action) + " the upload of '" + percent_encoded(key, SlashEncoding::kKept) + "'";
}

std::string xml_text(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

// One text as the body of a request.
class TextBody {
 public:
  explicit TextBody(std::string text) : text_(std::move(text)), piece_(std::as_bytes(std::span(text_))) {}
  TextBody(const TextBody&) = delete;
  TextBody& operator=(const TextBody&) = delete;
  const std::span<const std::span<const std::byte>>* pieces() const { return &pieces_; }
  std::span<const std::byte> bytes() const { return piece_; }

 private:
  std::string text_;
  std::span<const std::byte> piece_;
  std::span<const std::span<const std::byte>> pieces_{&piece_, 1};
};

std::string completion_text(std::span<const UploadedPart> parts, bool with_checksums) {
  std::string text = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (const UploadedPart& part : parts) {
    text += "<Part><PartNumber>" + std::to_string(part.number) + "</PartNumber><ETag>" + xml_text(part.tag) + "</ETag>";
    if (with_checksums && part.crc32) text += "<ChecksumCRC32>" + crc32_in_base64(*part.crc32) + "</ChecksumCRC32>";
    text += "</Part>";
  }
  return text + "</CompleteMultipartUpload>";
}

// The CRC of the whole object; nullopt if a part's is not known, or the sizes do not add up.
std::optional<std::uint32_t> crc_of_parts(std::span<const UploadedPart> parts, std::uint64_t size) {
  std::uint32_t crc = 0;
  std::uint64_t sum = 0;
  for (const UploadedPart& part : parts) {
    if (!part.crc32) return std::nullopt;
    crc = combine_crc32(crc, *part.crc32, part.size);
    sum += part.size;
  }
  return sum == size ? std::optional(crc) : std::nullopt;
}

// Whether an entity tag can be that of an upload of so many parts: "...-3".
bool can_be_tag_of_upload(std::string_view tag, std::size_t part_count) {
  const std::size_t dash = tag.rfind('-');
  return dash == std::string_view::npos || tag.substr(dash + 1) == std::to_string(part_count) + "\"";
}

bool is_refusal_of_content(int status) { return status == 400 || status == 411 || status == 501; }

}  // namespace

Result<std::string> S3Client::begin_upload(std::string_view key) {
  CAIRN_TRY(check_key(key));
  const std::string doing = doing_upload("beginning", key);
  const std::span<const std::span<const std::byte>> no_bytes;
  for (;;) {
    const UploadChecksum checksum =
        exchange_->has_checksums() ? upload_checksum_.load(std::memory_order_relaxed) : UploadChecksum::kNone;
    StoreRequest request{doing, "POST", std::string(key), {{"uploads", ""}}};
    request.body = &no_bytes;
    if (checksum != UploadChecksum::kNone) request.headers.push_back({"x-amz-checksum-algorithm", "CRC32"});
    if (checksum == UploadChecksum::kOfObject) request.headers.push_back({"x-amz-checksum-type", "FULL_OBJECT"});
    CAIRN_TRY_ASSIGN(const StoreReply reply, exchange_->send(std::move(request)));
    if (reply.is_success()) {
      Result<std::string> id = decode_begun_upload(reply.end.text);
      if (!id) return std::move(id).error().while_doing(doing);
      return id;
    }
    if (!is_refusal_of_content(reply.status()) || checksum == UploadChecksum::kNone) {
      return exchange_->error_of(reply, doing);
    }
    upload_checksum_.store(checksum == UploadChecksum::kOfObject ? UploadChecksum::kOfParts : UploadChecksum::kNone,
                           std::memory_order_relaxed);
  }
}

Result<UploadedPart> S3Client::upload_part(std::string_view key, std::string_view upload_id, std::uint32_t number,
                                           std::span<const std::span<const std::byte>> pieces) {
  assert(number >= 1 && number <= kPartCountMax);
  const std::string doing = doing_upload("sending part " + std::to_string(number) + " of", key);
  UploadedPart part;
  part.number = number;
  StoreRequest request{
      doing, "PUT", std::string(key), {{"partNumber", std::to_string(number)}, {"uploadId", std::string(upload_id)}}};
  request.body = &pieces;
  std::uint32_t crc = 0;
  for (const auto& piece : pieces) {
    part.size += piece.size();
    if (exchange_->has_checksums()) crc = crc32(piece, crc);
  }
  if (exchange_->has_checksums()) {
    part.crc32 = crc;
    if (upload_checksum_.load(std::memory_order_relaxed) != UploadChecksum::kNone) {
      request.headers.push_back({"x-amz-checksum-crc32", crc32_in_base64(crc)});
    }
  }
  CAIRN_TRY_ASSIGN(const StoreReply reply, exchange_->send(std::move(request)));
  if (!reply.is_success()) return exchange_->error_of(reply, doing);
  part.tag = quoted_tag(reply.end.head.header("etag"));
  if (part.tag.empty())
    return Error(ErrorCode::kUnsafe, "the store answered without the tag of the part").while_doing(doing);
  return part;
}

// 1. The completion is sent again until the store answers. A store may answer 200 and put an error into the body.
// 2. Without the upload, an earlier try of this call has completed it, or its upload was aborted: the object in place
//    decides.
// 3. The checksum that the store has computed of the object must be that of the parts.
Result<ObjectVersion> S3Client::complete_upload(std::string_view key, std::string_view upload_id,
                                                std::span<const UploadedPart> parts, std::uint64_t size) {
  const std::string doing = doing_upload("completing", key);
  const bool with_checksums =
      exchange_->has_checksums() && upload_checksum_.load(std::memory_order_relaxed) != UploadChecksum::kNone;
  const TextBody body(completion_text(parts, with_checksums));
  StoreRequest request{doing, "POST", std::string(key), {{"uploadId", std::string(upload_id)}}};
  request.body = body.pieces();
  request.may_answer_late_fault = true;
  CAIRN_TRY_ASSIGN(const StoreReply reply, exchange_->send(std::move(request)));  // (1)
  if (!reply.is_success()) {
    const bool is_gone = reply.fault.code == "NoSuchUpload" || (reply.status() == 404 && reply.fault.code.empty());
    Error error = exchange_->error_of(reply, doing);
    if (!is_gone) return error;
    return object_of_lost_upload(error, key, parts, size);  // (2)
  }
  Result<CompletedUpload> completed = decode_completed_upload(reply.end.text);
  if (!completed) return std::move(completed).error().while_doing(doing);
  const std::optional<std::uint32_t> crc = crc_of_parts(parts, size);
  if (completed->crc32 && crc && *completed->crc32 != *crc) {  // (3)
    return Error(ErrorCode::kCorrupt, "the checksum of the uploaded object differs from that of its parts")
        .file(key)
        .expected(crc_text(*crc))
        .actual(crc_text(*completed->crc32))
        .while_doing(doing);
  }
  ObjectVersion version;
  version.tag = is_google() ? tag_in(reply.end.head) : std::move(completed->tag);
  if (version.tag.empty()) return describe(key);
  version.size = size;
  version.changed_at = time_of_http_date(reply.end.head.header("date")).value_or(0);
  return version;
}

Result<ObjectVersion> S3Client::object_of_lost_upload(const Error& error, std::string_view key,
                                                      std::span<const UploadedPart> parts, std::uint64_t size) {
  Result<Described> found = describe_with_checksum(key);
  if (!found) {
    if (found.error().code() == ErrorCode::kNotFound) return error;
    return std::move(found).error();
  }
  const std::optional<std::uint32_t> stored = crc32_of_base64(found->checksum);
  const std::optional<std::uint32_t> sent = crc_of_parts(parts, size);
  const bool is_ours = found->version.size == size && (!stored || !sent || *stored == *sent) &&
                       (is_google() || can_be_tag_of_upload(found->version.tag, parts.size()));
  if (!is_ours) return error;
  return std::move(found->version);
}

Result<void> S3Client::abort_upload(std::string_view key, std::string_view upload_id) {
  const std::string doing = doing_upload("aborting", key);
  CAIRN_TRY_ASSIGN(const StoreReply reply,
                   exchange_->send({doing, "DELETE", std::string(key), {{"uploadId", std::string(upload_id)}}}));
  if (reply.is_success() || (reply.status() == 404 && reply.fault.code != "NoSuchBucket")) return {};
  return exchange_->error_of(reply, doing);
}

Result<std::vector<PendingUpload>> S3Client::pending_uploads(std::string_view prefix) {
  const std::string doing = "listing the uploads below '" + percent_encoded(prefix, SlashEncoding::kKept) + "'";
  std::vector<PendingUpload> uploads;
  UploadPage page;
  for (int pages = 0; pages < kPagesMax; ++pages) {
    StoreRequest request{doing, "GET"};
    request.query = {{"uploads", ""}, {"encoding-type", "url"}, {"prefix", std::string(prefix)}};
    if (!page.next_key.empty()) request.query.emplace_back("key-marker", page.next_key);
    if (!page.next_upload.empty()) request.query.emplace_back("upload-id-marker", page.next_upload);
    CAIRN_TRY_ASSIGN(const StoreReply reply, exchange_->send(std::move(request)));
    if (!reply.is_success()) return exchange_->error_of(reply, doing);
    Result<UploadPage> decoded = decode_upload_page(reply.end.text, prefix);
    if (!decoded) return std::move(decoded).error().while_doing(doing);
    page = *std::move(decoded);
    for (PendingUpload& upload : page.uploads) uploads.push_back(std::move(upload));
    if (!page.has_more) return uploads;
  }
  return Error(ErrorCode::kUnsafe, "the store's list of uploads has no end").while_doing(doing);
}

Result<std::vector<UploadedPart>> S3Client::uploaded_parts(std::string_view key, std::string_view upload_id) {
  const std::string doing = doing_upload("listing the parts of", key);
  std::vector<UploadedPart> parts;
  std::uint32_t after = 0;
  for (;;) {
    StoreRequest request{doing, "GET", std::string(key), {{"uploadId", std::string(upload_id)}}};
    if (after != 0) request.query.emplace_back("part-number-marker", std::to_string(after));
    CAIRN_TRY_ASSIGN(const StoreReply reply, exchange_->send(std::move(request)));
    if (!reply.is_success()) return exchange_->error_of(reply, doing);
    Result<PartPage> page = decode_part_page(reply.end.text);
    if (!page) return std::move(page).error().while_doing(doing);
    for (UploadedPart& part : page->parts) parts.push_back(std::move(part));
    if (!page->has_more) return parts;
    if (page->next_number <= after) {
      return Error(ErrorCode::kUnsafe, "the store's list of parts does not go on").while_doing(doing);
    }
    after = page->next_number;
  }
}

Result<void> S3Client::remove_all(std::span<const std::string> keys) {
  for (const std::string& key : keys) CAIRN_TRY(check_key(key));
  while (!keys.empty()) {
    if (keys.size() == 1 || is_google() || !removes_batches_.load(std::memory_order_relaxed)) {
      CAIRN_TRY(remove(keys.front()));
      keys = keys.subspan(1);
      continue;
    }
    const auto batch = keys.first(std::min(keys.size(), kRemovalsMax));
    bool is_refused = false;
    CAIRN_TRY(remove_batch(batch, is_refused));
    if (is_refused) {
      removes_batches_.store(false, std::memory_order_relaxed);
    } else {
      keys = keys.subspan(batch.size());
    }
  }
  return {};
}

// `is_refused`: the store has no such request, or wants an MD5 in the request.
Result<void> S3Client::remove_batch(std::span<const std::string> keys, bool& is_refused) {
  const std::string doing = "removing " + std::to_string(keys.size()) + " objects";
  std::string text = "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Quiet>true</Quiet>";
  for (const std::string& key : keys) text += "<Object><Key>" + xml_text(key) + "</Key></Object>";
  const TextBody body(text + "</Delete>");
  StoreRequest request{doing, "POST", "", {{"delete", ""}}};
  request.headers.push_back({"x-amz-checksum-crc32", crc32_in_base64(crc32(body.bytes()))});
  request.headers.push_back({"x-amz-sdk-checksum-algorithm", "CRC32"});
  request.body = body.pieces();
  CAIRN_TRY_ASSIGN(const StoreReply reply, exchange_->send(std::move(request)));
  is_refused = is_refusal_of_content(reply.status());
  if (is_refused) return {};
  if (!reply.is_success()) return exchange_->error_of(reply, doing);
  const Result<std::optional<RemovalFault>> failed = decode_removals(reply.end.text);
  if (!failed) return Error(failed.error()).while_doing(doing);
  if (!*failed) return {};
  return Error(ErrorCode::kUnavailable,
               "the store refused a removal: " + (*failed)->fault.code + ": " + (*failed)->fault.message)
      .file((*failed)->key)
      .while_doing(doing);
}

}  // namespace cairn::storage
