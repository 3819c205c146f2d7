#include "storage/bucket/s3_client.h"

#include <array>
#include <charconv>
#include <utility>

#include "core/checked.h"
#include "core/checksum.h"
#include "core/whole_number.h"
#include "storage/bucket/store_time.h"

namespace cairn::storage {
namespace {

std::string doing_to(std::string_view action, std::string_view key) {
  return std::string(action) + " '" + percent_encoded(key, SlashEncoding::kKept) + "'";
}

// "bytes 0-9/20"
struct ContentRange {
  std::uint64_t begin = 0;
  std::uint64_t last = 0;
  std::uint64_t size = 0;
};

std::optional<ContentRange> content_range(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  if (text.substr(0, kUnit.size()) != kUnit) return std::nullopt;
  text.remove_prefix(kUnit.size());
  const std::size_t dash = text.find('-');
  const std::size_t slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || dash > slash) return std::nullopt;
  const auto begin = whole_number<std::uint64_t>(text.substr(0, dash));
  const auto last = whole_number<std::uint64_t>(text.substr(dash + 1, slash - dash - 1));
  const auto size = whole_number<std::uint64_t>(text.substr(slash + 1));
  if (!begin || !last || !size || *last >= *size || *begin > *last) return std::nullopt;
  return ContentRange{*begin, *last, *size};
}

std::string range_text(std::uint64_t offset, std::uint64_t length) {
  return "bytes=" + std::to_string(offset) + "-" + std::to_string(offset + length - 1);
}

void set_header(std::vector<HttpHeader>& headers, std::string_view name, std::string value) {
  for (HttpHeader& header : headers) {
    if (header.name == name) {
      header.value = std::move(value);
      return;
    }
  }
  headers.push_back({std::string(name), std::move(value)});
}

// The checksum of the object's bytes; nullopt if the answer has none, or that of an upload's parts.
std::optional<std::uint32_t> object_crc(const HttpHead& head) {
  if (head.header("x-amz-checksum-type") == "COMPOSITE") return std::nullopt;
  return crc32_of_base64(head.header("x-amz-checksum-crc32"));
}

Error damaged_bytes(std::uint32_t expected, std::uint32_t actual) {
  return Error(ErrorCode::kCorrupt, "the received bytes differ from the checksum of the store")
      .expected(crc_text(expected))
      .actual(crc_text(actual));
}

// The range of an object that a read still wants, and the answers about the range.
class RangeRead {
 public:
  RangeRead(std::uint64_t offset, std::span<std::byte> target) : offset_(offset), target_(target) {}

  // Of an answer's begin: checks that the answer is the wanted range.
  Result<HttpTarget> target_of(const HttpHead& head) {
    const std::span<std::byte> rest = target_.subspan(static_cast<std::size_t>(done_));
    std::uint64_t size = rest.size();
    if (head.status == 206) {
      const std::optional<ContentRange> range = content_range(head.header("content-range"));
      if (!range || range->begin != offset_ + done_ || range->last - range->begin + 1 != rest.size()) {
        return Error(ErrorCode::kUnsafe, "the store answered with another range than asked for")
            .expected(range_text(offset_ + done_, rest.size()))
            .actual("'" + percent_encoded(head.header("content-range"), SlashEncoding::kKept) + "'");
      }
      size = range->size;
    } else if (offset_ + done_ != 0 || head.content_length() != rest.size()) {
      return Error(ErrorCode::kUnsafe, "the store answered with a whole object in place of a range");
    }
    is_whole_ = target_.size() == size;
    size_ = size;
    return HttpTarget{rest, is_whole_ && object_crc(head).has_value()};
  }

  // After a failure: the bytes that have arrived count, if the object's tag is known.
  bool continue_after(StoreRequest& request, const HttpEnd& failed, const HttpHeader& condition) {
    if (failed.received == 0 || condition.value.empty() || done_ + failed.received >= target_.size()) return false;
    crc_ = combine_crc32(crc_, failed.crc32, failed.received);
    has_whole_crc_ = has_whole_crc_ && object_crc(failed.head).has_value();
    done_ += failed.received;
    set_header(request.headers, "range", range_text(offset_ + done_, target_.size() - done_));
    set_header(request.headers, condition.name, condition.value);
    return true;
  }

  // Of the last answer.
  Result<void> check(const HttpEnd& end) const {
    const std::optional<std::uint32_t> expected = object_crc(end.head);
    if (!is_whole_ || !expected || !has_whole_crc_) return {};
    const std::uint32_t actual = combine_crc32(crc_, end.crc32, end.received);
    if (actual != *expected) return damaged_bytes(*expected, actual);
    return {};
  }
  std::uint64_t object_size() const { return size_; }

 private:
  std::uint64_t offset_;
  std::span<std::byte> target_;
  std::uint64_t done_ = 0;  // bytes of earlier answers
  std::uint64_t size_ = 0;  // of the object
  std::uint32_t crc_ = 0;   // of the bytes of earlier answers
  bool has_whole_crc_ = true;
  bool is_whole_ = false;
};

}  // namespace

Result<std::unique_ptr<S3Client>> S3Client::open(const BucketAddress& address, const StoreOptions& options,
                                                 const Environment& environment) {
  CAIRN_TRY_ASSIGN(auto exchange, StoreExchange::open(address, environment, options));
  return std::unique_ptr<S3Client>(new S3Client(std::move(exchange), options, environment));
}

std::shared_ptr<ObjectStore> S3Client::with_stop(std::shared_ptr<const os::StopFlag> stop) {
  Result<std::unique_ptr<S3Client>> client = open(exchange_->address(), options_, environment_);
  if (!client) return nullptr;
  (*client)->exchange_->set_stop(std::move(stop));
  return *std::move(client);
}

std::string S3Client::tag_in(const HttpHead& head) const {
  return is_google() ? std::string(head.header("x-goog-generation")) : quoted_tag(head.header("etag"));
}

HttpHeader S3Client::tag_condition(std::string_view tag) const {
  return {is_google() ? "x-amz-if-generation-match" : "if-match", std::string(tag)};
}

Result<ObjectVersion> S3Client::version_in(const HttpHead& head) const {
  ObjectVersion version;
  version.tag = tag_in(head);
  version.changed_at = time_of_http_date(head.header("last-modified")).value_or(0);
  if (version.tag.empty()) return Error(ErrorCode::kUnsafe, "the store answered without the tag of the object");
  return version;
}

Result<ObjectVersion> S3Client::describe(std::string_view key) {
  CAIRN_TRY_ASSIGN(Described described, describe_with_checksum(key));
  return std::move(described.version);
}

Result<S3Client::Described> S3Client::describe_with_checksum(std::string_view key) {
  const std::string doing = doing_to("describing", key);
  StoreRequest request{doing, "HEAD", std::string(key)};
  if (exchange_->has_checksums()) request.headers.push_back({"x-amz-checksum-mode", "ENABLED"});
  CAIRN_TRY_ASSIGN(const StoreReply reply, exchange_->send(std::move(request)));
  if (!reply.is_success()) return exchange_->error_of(reply, doing);
  const HttpHead& head = reply.end.head;
  CAIRN_TRY_ASSIGN(ObjectVersion version, version_in(head));
  std::optional<std::uint64_t> size = head.content_length();
  if (const auto stored = whole_number<std::uint64_t>(head.header("x-goog-stored-content-length"))) size = stored;
  if (!size) return Error(ErrorCode::kUnsafe, "the store answered without the size of the object").while_doing(doing);
  version.size = *size;
  return Described{std::move(version), std::string(head.header("x-amz-checksum-crc32"))};
}

Result<ObjectVersion> S3Client::read(std::string_view key, std::uint64_t offset, std::span<std::byte> target,
                                     std::string_view tag) {
  const std::string doing = doing_to("reading", key);
  const auto outside = [&] {
    return Error(ErrorCode::kCorrupt, "the object ends before the wanted bytes")
        .file(key)
        .offset(offset)
        .expected(std::to_string(target.size()) + " bytes")
        .while_doing(doing);
  };
  const auto replaced = [&] {
    return Error(ErrorCode::kReplaced, "the object was replaced").file(key).while_doing(doing);
  };
  if (!checked_add<std::uint64_t>(offset, target.size())) return outside();
  if (target.empty()) {
    CAIRN_TRY_ASSIGN(ObjectVersion version, describe(key));
    if (!tag.empty() && version.tag != tag) return replaced();
    if (offset > version.size) return outside();
    return version;
  }
  RangeRead range(offset, target);
  StoreRequest request{doing, "GET", std::string(key)};
  request.headers.push_back({"range", range_text(offset, target.size())});
  if (!tag.empty()) request.headers.push_back(tag_condition(tag));
  if (exchange_->has_checksums()) request.headers.push_back({"x-amz-checksum-mode", "ENABLED"});
  request.target_of = [&](const HttpHead& head) { return range.target_of(head); };
  request.continue_after = [&](StoreRequest& sent, const HttpEnd& failed) {
    return range.continue_after(sent, failed, tag_condition(tag.empty() ? tag_in(failed.head) : tag));
  };
  CAIRN_TRY_ASSIGN(const StoreReply reply, exchange_->send(std::move(request)));
  if (reply.status() == 412) return replaced();
  if (reply.status() == 416) return outside();
  if (!reply.is_success()) return exchange_->error_of(reply, doing);
  if (auto checked = range.check(reply.end); !checked) {
    return std::move(checked).error().file(key).offset(offset).while_doing(doing);
  }
  CAIRN_TRY_ASSIGN(ObjectVersion version, version_in(reply.end.head));
  version.size = range.object_size();
  return version;
}

Result<ObjectStore::Content> S3Client::read_whole(std::string_view key, std::uint64_t bytes_max) {
  const std::string doing = doing_to("reading", key);
  StoreRequest request{doing, "GET", std::string(key)};
  if (exchange_->has_checksums()) request.headers.push_back({"x-amz-checksum-mode", "ENABLED"});
  std::string bytes;
  request.target_of = [&](const HttpHead& head) -> Result<HttpTarget> {
    const std::optional<std::uint64_t> length = head.content_length();
    if (!length) return Error(ErrorCode::kUnsafe, "the store answered without the size of the object");
    if (*length > bytes_max) {
      return Error(ErrorCode::kCorrupt, "the object is larger than any of its kind")
          .expected("at most " + std::to_string(bytes_max) + " bytes")
          .actual(std::to_string(*length));
    }
    bytes.assign(static_cast<std::size_t>(*length), '\0');
    return HttpTarget{std::as_writable_bytes(std::span(bytes)), object_crc(head).has_value()};
  };
  Result<StoreReply> reply = exchange_->send(std::move(request));
  if (!reply) return std::move(reply).error().file(key);
  if (!reply->is_success()) return exchange_->error_of(*reply, doing);
  const std::optional<std::uint32_t> crc = object_crc(reply->end.head);
  if (crc && *crc != reply->end.crc32) {
    return damaged_bytes(*crc, reply->end.crc32).file(key).while_doing(doing);
  }
  CAIRN_TRY_ASSIGN(ObjectVersion version, version_in(reply->end.head));
  version.size = bytes.size();
  return Content{std::move(bytes), std::move(version)};
}

Result<WriteOutcome> S3Client::write(std::string_view key, std::span<const std::byte> bytes,
                                     const WriteCondition& condition) {
  CAIRN_TRY(check_key(key));
  const std::string doing = doing_to("writing", key);
  const std::array pieces{bytes};
  const std::span<const std::span<const std::byte>> body(pieces);
  StoreRequest request{doing, "PUT", std::string(key)};
  request.body = &body;
  if (exchange_->has_checksums()) request.headers.push_back({"x-amz-checksum-crc32", crc32_in_base64(crc32(bytes))});
  return send_conditional(std::move(request), condition);
}

// 1. The request is sent again until the store answers 2xx, 412, or 404 for a tag: the condition keeps a second try
//    from replacing a later object.
// 2. A refusal after a lost answer may be the work of the lost try: the outcome says so, and the caller looks.
// 3. Without an answer within the limits the outcome is unknown, if any try may have reached the store.
Result<WriteOutcome> S3Client::send_conditional(StoreRequest request, const WriteCondition& condition) {
  using Kind = WriteCondition::Kind;
  if (condition.kind == Kind::kAbsent) {
    request.headers.push_back(is_google() ? HttpHeader{"x-amz-if-generation-match", "0"}
                                          : HttpHeader{"if-none-match", "*"});
  } else if (condition.kind == Kind::kTag) {
    request.headers.push_back(tag_condition(condition.tag));
  }
  request.is_conditional = condition.kind != Kind::kNone;
  const std::string doing(request.doing);
  WriteOutcome outcome;
  Result<StoreReply> reply = exchange_->send(std::move(request), &outcome.answer_was_lost);  // (1)
  if (!reply) {
    if (condition.kind == Kind::kNone || !outcome.answer_was_lost) return std::move(reply).error();
    outcome.kind = WriteOutcome::Kind::kUnknown;  // (3)
    outcome.why = std::move(reply).error();
    return outcome;
  }
  outcome.answer_was_lost = reply->answer_was_lost;
  if (reply->is_success()) {
    outcome.tag = tag_in(reply->end.head);
    return outcome;
  }
  const int status = reply->status();
  const bool is_gone = status == 404 && condition.kind == Kind::kTag && reply->fault.code != "NoSuchBucket";
  if (condition.kind == Kind::kNone || (status != 412 && !is_gone)) return exchange_->error_of(*reply, doing);
  outcome.kind = WriteOutcome::Kind::kRefused;  // (2)
  return outcome;
}

Result<void> S3Client::remove(std::string_view key) {
  CAIRN_TRY(check_key(key));
  const std::string doing = doing_to("removing", key);
  CAIRN_TRY_ASSIGN(const StoreReply reply, exchange_->send({doing, "DELETE", std::string(key)}));
  if (reply.is_success() || (reply.status() == 404 && reply.fault.code != "NoSuchBucket")) return {};
  return exchange_->error_of(reply, doing);
}

Result<WriteOutcome> S3Client::remove_if(std::string_view key, const std::string& tag) {
  CAIRN_TRY(check_key(key));
  const std::string doing = doing_to("removing", key);
  return send_conditional({doing, "DELETE", std::string(key)}, WriteCondition::of_tag(tag));
}

Result<ObjectPage> S3Client::list(std::string_view prefix, bool by_folder, std::string_view next,
                                  std::uint32_t count_max) {
  const std::string doing = doing_to("listing", prefix);
  StoreRequest request{doing, "GET"};
  request.query = {{"list-type", "2"},
                   {"encoding-type", "url"},
                   {"max-keys", std::to_string(count_max)},
                   {"prefix", std::string(prefix)}};
  if (by_folder) request.query.emplace_back("delimiter", "/");
  if (!next.empty()) request.query.emplace_back("continuation-token", next);
  CAIRN_TRY_ASSIGN(const StoreReply reply, exchange_->send(std::move(request)));
  if (!reply.is_success()) return exchange_->error_of(reply, doing);
  Result<ObjectPage> page = decode_listing(reply.end.text, prefix, exchange_->address().dialect);
  if (!page) return std::move(page).error().while_doing(doing);
  return page;
}

Result<double> S3Client::now() {
  if (const std::optional<double> now = exchange_->now()) return *now;
  CAIRN_TRY_ASSIGN(const StoreReply reply, exchange_->send({"asking for the time", "HEAD"}));
  if (const std::optional<double> now = exchange_->now()) return *now;
  return Error(ErrorCode::kUnsafe, "the store answered " + std::to_string(reply.status()) + " without a date");
}

}  // namespace cairn::storage
