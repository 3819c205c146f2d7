#include "storage/bucket/store_exchange.h"

#include <cairn/version.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

#include "storage/bucket/store_time.h"

namespace cairn::storage {
namespace {

constexpr int kDamagedTries = 3;
constexpr std::string_view kAmazonHeader = "x-amz-";
constexpr std::string_view kGoogleHeader = "x-goog-";

std::int64_t unix_time() { return static_cast<std::int64_t>(std::time(nullptr)); }

template <std::size_t N>
bool is_any_of(std::string_view text, const std::array<std::string_view, N>& texts) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

// Whether the store asks for a later try.
bool may_pass(int status, const StoreFault& fault) {
  constexpr std::array<std::string_view, 9> kPassing{
      "SlowDown",           "RequestTimeout", "InternalError",   "ServiceUnavailable",        "OperationAborted",
      "RequestTimeTooSkew", "Throttling",     "TooManyRequests", "ConditionalRequestConflict"};
  constexpr std::array kStatuses{408, 409, 425, 429, 500, 502, 503, 504};
  if (is_any_of(fault.code, kPassing)) return true;
  if (status == 409) return fault.code.empty();
  return std::find(kStatuses.begin(), kStatuses.end(), status) != kStatuses.end();
}

// A message of the store, without any key that the store may have put into it.
std::string without_keys(std::string message, const SigningKeys& keys) {
  for (const std::string& key : {keys.access_key, keys.secret_key, keys.session_token}) {
    if (key.empty()) continue;
    for (std::size_t at = message.find(key); at != std::string::npos; at = message.find(key, at)) {
      message.replace(at, key.size(), "***");
    }
  }
  return message;
}

}  // namespace

Result<std::unique_ptr<StoreExchange>> StoreExchange::open(const BucketAddress& address, const Environment& environment,
                                                           const StoreOptions& options) {
  if (address.bucket.size() > 6 && address.bucket.substr(address.bucket.size() - 6) == "--x-s3") {
    return Error(ErrorCode::kUnsupported, "a directory bucket of S3 Express needs sessions, which Cairn does not have")
        .expected("a bucket of the standard kind")
        .actual("'" + address.bucket + "'");
  }
  CAIRN_TRY_ASSIGN(const Profile profile, read_profile(environment));
  CAIRN_TRY_ASSIGN(BucketSettings settings, read_bucket_settings(address, environment, profile));
  CAIRN_TRY_ASSIGN(auto http, HttpConnections::open(options.http, settings.ca_file));
  CAIRN_TRY_ASSIGN(auto credentials, BucketCredentials::open(address, settings, environment,
                                                             [] { return static_cast<double>(unix_time()); }));
  return std::unique_ptr<StoreExchange>(
      new StoreExchange(address, std::move(settings), std::move(credentials), std::move(http), options));
}

HttpRequest StoreExchange::signed_request(const StoreRequest& request, const BucketSettings& settings,
                                          const SigningKeys& keys) const {
  const bool is_google = address_.dialect == StoreDialect::kGoogle;
  const std::string_view prefix = is_google ? kGoogleHeader : kAmazonHeader;
  const auto named = [&](std::string_view rest) { return std::string(prefix) + std::string(rest); };

  UnsignedRequest to_sign;
  to_sign.method = request.method;
  to_sign.query = query_text(request.query);
  to_sign.payload_hash = "UNSIGNED-PAYLOAD";
  to_sign.path = settings.path;
  const bool is_path = settings.style == AddressingStyle::kPath;
  const std::string host = is_path ? settings.host : address_.bucket + "." + settings.host;
  if (is_path) to_sign.path += "/" + address_.bucket;
  if (!request.key.empty() || !is_path) to_sign.path += "/" + percent_encoded(request.key, SlashEncoding::kKept);

  SignatureScope scope{address_.dialect, settings.region, is_google ? "storage" : "s3",
                       compact_date(unix_time() + clock_ahead_.load(std::memory_order_relaxed))};
  for (const HttpHeader& header : request.headers) {
    const bool is_own = header.name.substr(0, kAmazonHeader.size()) == kAmazonHeader;
    to_sign.headers.push_back({is_own ? named(header.name.substr(kAmazonHeader.size())) : header.name, header.value});
  }
  to_sign.headers.push_back({"host", host});
  to_sign.headers.push_back({named("content-sha256"), to_sign.payload_hash});
  to_sign.headers.push_back({named("date"), scope.date});
  if (!keys.session_token.empty()) to_sign.headers.push_back({named("security-token"), keys.session_token});

  HttpRequest http;
  http.method = request.method;
  const std::size_t host_at = settings.scheme_and_host.find("//") + 2;
  http.url = settings.scheme_and_host.substr(0, host_at) + host + to_sign.path;
  if (!to_sign.query.empty()) http.url += "?" + to_sign.query;
  http.headers = to_sign.headers;
  http.headers.push_back({"authorization", authorization_of(to_sign, keys, scope)});
  http.headers.push_back({"user-agent", "cairn/" + std::string(kVersion)});
  http.body = request.body;
  http.target_of = request.target_of;
  http.on_new_connection = request.is_conditional;
  return http;
}

Result<StoreReply> StoreExchange::send(StoreRequest request, bool* was_lost) {
  const std::shared_ptr<const os::StopFlag> stop_flag = stop();
  RetryPace pace(options_.retry, RetryPace::Clock::now());
  Tries tries;
  bool answer_was_lost = false;
  const auto failed = [&](Error error) {
    if (was_lost != nullptr) *was_lost = answer_was_lost;
    return std::move(error).while_doing(request.doing);
  };
  for (;;) {
    Result<SigningKeys> keys = credentials_->current(stop_flag.get());
    if (!keys) return failed(std::move(keys).error());
    StoreReply reply;
    reply.end = http_->perform(signed_request(request, settings(), *keys), stop_flag.get());
    const bool is_lost = reply.end.kind == HttpEnd::Kind::kLost;
    if (reply.end.kind != HttpEnd::Kind::kAnswered && !is_lost) {
      answer_was_lost = answer_was_lost || reply.end.was_sent;
      return failed(*reply.end.error);
    }
    Next next = Next::kTryAgain;
    if (is_lost) {
      answer_was_lost = answer_was_lost || reply.end.was_sent;
    } else {
      note_date(reply.end.head);
      // A proxy may answer for a store that goes on with the request.
      answer_was_lost = answer_was_lost || reply.end.head.status >= 500;
      next = next_after(reply, request, *keys, tries);
    }
    if (next == Next::kReturn) {
      reply.answer_was_lost = answer_was_lost;
      return reply;
    }
    if (request.continue_after && request.continue_after(request, reply.end)) {
      pace.note_success(RetryPace::Clock::now());
    }
    if (next == Next::kTryAtOnce) continue;
    const auto pause = pace.next_pause(RetryPace::Clock::now(), had_contact_.load(std::memory_order_relaxed));
    if (!pause) {
      if (is_lost) return failed(*reply.end.error);
      if (was_lost != nullptr) *was_lost = answer_was_lost;
      return error_of(reply, request.doing);
    }
    if (pause_unless_stopped(*pause, stop_flag.get())) {
      return failed(Error(ErrorCode::kCancelled, "the request was cancelled"));
    }
  }
}

StoreExchange::Next StoreExchange::next_after(StoreReply& reply, const StoreRequest& request, const SigningKeys& keys,
                                              Tries& tries) {
  const HttpHead& head = reply.end.head;
  if (head.is_success()) {
    if (!request.may_answer_late_fault) return Next::kReturn;
    reply.fault = decode_fault(reply.end.text);
    // The store began its answer before it had done its work. Such a failure may pass, except a refusal of the
    // request's content.
    constexpr std::array<std::string_view, 5> kFinal{"", "InvalidPart", "InvalidPartOrder", "NoSuchUpload",
                                                     "EntityTooSmall"};
    return is_any_of(reply.fault.code, kFinal) ? Next::kReturn : Next::kTryAgain;
  }
  reply.fault = decode_fault(reply.end.text);
  reply.fault.message = without_keys(std::move(reply.fault.message), keys);
  const std::string& code = reply.fault.code;
  if (code == "RequestTimeTooSkewed" && !std::exchange(tries.has_set_clock, true)) {
    const std::optional<double> date = time_of_http_date(head.header("date"));
    if (!date) return Next::kReturn;
    clock_ahead_.store(static_cast<std::int64_t>(*date) - unix_time(), std::memory_order_relaxed);
    return Next::kTryAtOnce;
  }
  constexpr std::array<std::string_view, 3> kExpired{"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"};
  if (is_any_of(code, kExpired) && !std::exchange(tries.has_renewed_keys, true)) {
    return credentials_->renew(keys) ? Next::kTryAtOnce : Next::kReturn;
  }
  constexpr std::array<std::string_view, 3> kDamaged{"BadDigest", "XAmzContentChecksumMismatch", "InvalidDigest"};
  if (is_any_of(code, kDamaged) && ++tries.damaged < kDamagedTries) return Next::kTryAgain;
  const bool may_be_elsewhere = head.status == 301 || head.status == 307 || head.status == 400;
  if (may_be_elsewhere && !std::exchange(tries.has_set_region, true) && follow_region(head)) return Next::kTryAtOnce;
  return may_pass(head.status, reply.fault) ? Next::kTryAgain : Next::kReturn;
}

// AWS answers requests to the wrong region with the name of the right one. The host is made of that name: no address of
// the answer is followed.
bool StoreExchange::follow_region(const HttpHead& head) {
  const std::string_view region = head.header("x-amz-bucket-region");
  const bool is_name = !region.empty() && region.size() <= 32 && std::all_of(region.begin(), region.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
  const std::lock_guard lock(mutex_);
  if (!is_name || settings_.region == region) return false;
  if (settings_.is_endpoint_given) {
    settings_.region = region;
  } else {
    set_amazon_host(settings_, region);
  }
  return true;
}

void StoreExchange::note_date(const HttpHead& head) {
  had_contact_.store(true, std::memory_order_relaxed);
  const std::optional<double> date = time_of_http_date(head.header("date"));
  if (!date) return;
  const std::lock_guard lock(mutex_);
  date_ = *date;
  date_at_ = RetryPace::Clock::now();
}

std::optional<double> StoreExchange::now() const {
  const std::lock_guard lock(mutex_);
  if (!date_) return std::nullopt;
  return *date_ + std::chrono::duration<double>(RetryPace::Clock::now() - date_at_).count();
}

BucketSettings StoreExchange::settings() const {
  const std::lock_guard lock(mutex_);
  return settings_;
}

void StoreExchange::set_stop(std::shared_ptr<const os::StopFlag> stop) {
  const std::lock_guard lock(mutex_);
  stop_ = std::move(stop);
}

std::shared_ptr<const os::StopFlag> StoreExchange::stop() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

Error StoreExchange::error_of(const StoreReply& reply, std::string_view doing) const {
  const int status = reply.status();
  std::string message = "the store answered " + std::to_string(status);
  if (!reply.fault.code.empty()) message += " " + reply.fault.code + ": " + reply.fault.message;
  ErrorCode code = ErrorCode::kUnavailable;
  std::string_view expected;
  constexpr std::array<std::string_view, 3> kFull{"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull"};
  constexpr std::array<std::string_view, 2> kDamaged{"BadDigest", "XAmzContentChecksumMismatch"};
  if (status == 404) {
    code = ErrorCode::kNotFound;
    if (reply.fault.code == "NoSuchBucket") expected = "a bucket of this name";
  } else if (status == 501) {
    code = ErrorCode::kUnsupported;
  } else if (is_any_of(reply.fault.code, kFull) || status == 507) {
    code = ErrorCode::kNoSpace;
  } else if (is_any_of(reply.fault.code, kDamaged)) {
    code = ErrorCode::kCorrupt;
  } else if (status == 401 || status == 403) {
    expected = "keys that may do this in the bucket; AWS_PROFILE or AWS_ACCESS_KEY_ID chooses the keys";
  } else if (status >= 300 && status < 400) {
    expected =
        "the region of the bucket in AWS_REGION, or its endpoint in AWS_ENDPOINT_URL; redirects are not followed";
  }
  Error error(code, std::move(message));
  if (!expected.empty()) error = std::move(error).expected(expected);
  return std::move(error).while_doing(std::string(doing) + " in the bucket '" + address_.bucket + "'");
}

}  // namespace cairn::storage
