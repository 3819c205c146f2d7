// StoreExchange: a request to an object store, signed, sent, and sent again after failures that may pass.
//
// Thread-safe. Errors name the operation and the key, and hold no part of a credential.
#pragma once

#include <cairn/result.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "os/parallel.h"
#include "storage/bucket/bucket_address.h"
#include "storage/bucket/bucket_credentials.h"
#include "storage/bucket/bucket_settings.h"
#include "storage/bucket/http_transfer.h"
#include "storage/bucket/request_signature.h"
#include "storage/bucket/retry_pace.h"
#include "storage/bucket/store_answer.h"

namespace cairn::storage {

struct StoreRequest {
  std::string_view doing;  // "writing 'run/step_1/.metadata'", for errors
  std::string method;
  std::string key = {};  // empty: the bucket
  QueryParameters query = {};
  std::vector<HttpHeader> headers = {};  // names in lower case; "x-amz-" stands for the prefix of the dialect
  const std::span<const std::span<const std::byte>>* body = nullptr;
  std::function<Result<HttpTarget>(const HttpHead& head)> target_of = {};
  // Called before each try but the first, with the bytes that have arrived in the target: the request is changed to ask
  // for the rest. False: begins anew.
  std::function<bool(StoreRequest& request, const HttpEnd& failed)> continue_after = {};
  bool is_conditional = false;         // a lost answer must not be hidden by the library
  bool may_answer_late_fault = false;  // a successful status can have an <Error> as its body
};

struct StoreReply {
  HttpEnd end;                   // with kAnswered
  StoreFault fault = {};         // unless the status is a success
  bool answer_was_lost = false;  // an earlier try may have reached the store, and got no answer
  int status() const { return end.head.status; }
  bool is_success() const { return end.head.is_success() && fault.code.empty(); }
};

struct StoreOptions {
  HttpLimits http = {};
  RetryLimits retry = {};
};

class StoreExchange {
 public:
  static Result<std::unique_ptr<StoreExchange>> open(const BucketAddress& address, const Environment& environment,
                                                     const StoreOptions& options);

  // The reply of the store, of any status that another try would not change. kUnavailable: no such reply within the
  // limits. `was_lost`, if given: with an error, whether the request may have reached the store.
  Result<StoreReply> send(StoreRequest request, bool* was_lost = nullptr);

  // The error for a reply that is not a success.
  Error error_of(const StoreReply& reply, std::string_view doing) const;

  // The time by the clock of the store; nullopt before its first answer.
  std::optional<double> now() const;

  void set_stop(std::shared_ptr<const os::StopFlag> stop);
  const BucketAddress& address() const { return address_; }
  bool has_checksums() const { return settings_has_checksums_; }

 private:
  // What follows from a failed try.
  enum class Next : std::uint8_t { kReturn, kTryAgain, kTryAtOnce };
  struct Tries {
    bool has_renewed_keys = false;
    bool has_set_clock = false;
    bool has_set_region = false;
    int damaged = 0;
  };

  StoreExchange(BucketAddress address, BucketSettings settings, std::unique_ptr<BucketCredentials> credentials,
                std::unique_ptr<HttpConnections> http, const StoreOptions& options)
      : address_(std::move(address)),
        options_(options),
        settings_has_checksums_(settings.has_checksums),
        settings_(std::move(settings)),
        credentials_(std::move(credentials)),
        http_(std::move(http)) {}
  HttpRequest signed_request(const StoreRequest& request, const BucketSettings& settings,
                             const SigningKeys& keys) const;
  Next next_after(StoreReply& reply, const StoreRequest& request, const SigningKeys& keys, Tries& tries);
  bool follow_region(const HttpHead& head);
  void note_date(const HttpHead& head);
  BucketSettings settings() const;
  std::shared_ptr<const os::StopFlag> stop() const;

  const BucketAddress address_;
  const StoreOptions options_;
  const bool settings_has_checksums_;
  mutable std::mutex mutex_;
  BucketSettings settings_;                   // the region may change once
  std::shared_ptr<const os::StopFlag> stop_;  // owned by the caller of set_stop() and by running requests
  std::optional<double> date_;                // of the last answer
  RetryPace::Clock::time_point date_at_;
  std::unique_ptr<BucketCredentials> credentials_;
  std::unique_ptr<HttpConnections> http_;
  std::atomic<bool> had_contact_{false};
  std::atomic<std::int64_t> clock_ahead_{0};  // of the store before this host's clock, in seconds, for signatures
};

}  // namespace cairn::storage
