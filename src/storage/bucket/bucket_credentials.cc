#include "storage/bucket/bucket_credentials.h"

#include <unistd.h>

#include <chrono>
#include <utility>

namespace cairn::storage {
namespace {

constexpr double kRenewBefore = 300;       // seconds before the keys expire
constexpr double kPauseAfterFailure = 30;  // seconds
constexpr std::chrono::milliseconds kServiceStall{5'000};
constexpr const char* kInstanceUrl = "http://169.254.169.254";
constexpr const char* kContainerUrl = "http://169.254.170.2";

std::optional<TemporaryKeys> keys_of(std::optional<std::string> access, std::optional<std::string> secret,
                                     std::optional<std::string> token) {
  if (!access || !secret) return std::nullopt;
  return TemporaryKeys{*std::move(access), *std::move(secret), std::move(token).value_or(""), 0};
}

std::optional<TemporaryKeys> keys_in_environment(const Environment& environment) {
  return keys_of(environment("AWS_ACCESS_KEY_ID"), environment("AWS_SECRET_ACCESS_KEY"),
                 environment("AWS_SESSION_TOKEN"));
}

std::optional<TemporaryKeys> keys_in_profile(const Profile& profile) {
  return keys_of(profile.setting("aws_access_key_id"), profile.setting("aws_secret_access_key"),
                 profile.setting("aws_session_token"));
}

bool is_set_to_true(const std::optional<std::string>& value) {
  return value && (*value == "true" || *value == "True" || *value == "TRUE");
}

// Keys become parts of headers.
bool is_header_text(std::string_view text) {
  for (const char c : text) {
    if (c < '!' || c > '~') return false;
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<BucketCredentials>> BucketCredentials::open(const BucketAddress& address,
                                                                   const BucketSettings& settings,
                                                                   const Environment& environment, Clock clock) {
  CAIRN_TRY_ASSIGN(const Profile profile, read_profile(environment));
  std::unique_ptr<BucketCredentials> credentials(new BucketCredentials(environment, std::move(clock)));
  CAIRN_TRY(credentials->choose(address, settings, profile));
  return credentials;
}

Result<void> BucketCredentials::choose(const BucketAddress& address, const BucketSettings& settings,
                                       const Profile& profile) {
  keys_ = keys_in_environment(environment_);
  if (keys_) {
    source_ = Source::kEnvironment;
    return {};
  }
  const bool is_amazon = address.dialect == StoreDialect::kAmazon;
  if (is_amazon && choose_web_identity(settings, profile)) {
    CAIRN_TRY_ASSIGN(http_, HttpConnections::open({.stall = kServiceStall}, settings.ca_file));
    return {};
  }
  keys_ = keys_in_profile(profile);
  if (keys_) {
    source_ = Source::kProfile;
    return {};
  }
  for (const char* name :
       {"credential_process", "sso_session", "sso_start_url", "login_session", "source_profile", "credential_source"}) {
    if (!profile.setting(name)) continue;
    return Error(ErrorCode::kUnsupported, "the profile '" + profile.name() + "' of AWS gets its keys by " + name)
        .expected("keys in the environment: eval \"$(aws configure export-credentials --format env)\"");
  }
  const bool has_service =
      is_amazon && (choose_container() || !is_set_to_true(environment_("AWS_EC2_METADATA_DISABLED")));
  if (!has_service) {
    return Error(ErrorCode::kInvalidArgument, "no keys for " + address.text())
        .expected(is_amazon ? "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile in ~/.aws/credentials, or a role"
                            : "an HMAC key in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in a profile");
  }
  if (source_ == Source::kInstance) {
    instance_.url = environment_("AWS_EC2_METADATA_SERVICE_ENDPOINT").value_or(kInstanceUrl);
    while (!instance_.url.empty() && instance_.url.back() == '/') instance_.url.pop_back();
  }
  CAIRN_TRY_ASSIGN(http_, HttpConnections::open({.stall = kServiceStall}, settings.ca_file));
  return {};
}

bool BucketCredentials::choose_web_identity(const BucketSettings& settings, const Profile& profile) {
  const auto setting = [&](const char* variable, const char* name) {
    std::optional<std::string> value = environment_(variable);
    return value ? value : profile.setting(name);
  };
  const std::optional<std::string> token_file = setting("AWS_WEB_IDENTITY_TOKEN_FILE", "web_identity_token_file");
  const std::optional<std::string> role = setting("AWS_ROLE_ARN", "role_arn");
  if (!token_file || !role) return false;
  source_ = Source::kWebIdentity;
  const std::string domain = settings.region.substr(0, 3) == "cn-" ? ".amazonaws.com.cn" : ".amazonaws.com";
  std::optional<std::string> url = environment_("AWS_ENDPOINT_URL_STS");
  if (!url) url = profile.service_endpoint("sts");
  identity_ = {url.value_or("https://sts." + settings.region + domain), *role,
               setting("AWS_ROLE_SESSION_NAME", "role_session_name").value_or("cairn-" + std::to_string(getpid())),
               *token_file};
  return true;
}

bool BucketCredentials::choose_container() {
  const std::optional<std::string> relative = environment_("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::optional<std::string> full = environment_("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (!relative && !full) return false;
  source_ = Source::kContainer;
  container_.url = relative ? kContainerUrl + *relative : *full;
  container_.token_file = environment_("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").value_or("");
  container_.token = environment_("AWS_CONTAINER_AUTHORIZATION_TOKEN").value_or("");
  return true;
}

Result<TemporaryKeys> BucketCredentials::fetch(const os::StopFlag* stop) {
  switch (source_) {
    case Source::kWebIdentity: return keys_of_web_identity(*http_, identity_, stop);
    case Source::kContainer: return keys_of_container(*http_, container_, stop);
    case Source::kInstance: return keys_of_instance(*http_, instance_, stop);
    case Source::kProfile: {
      CAIRN_TRY_ASSIGN(const Profile profile, read_profile(environment_));
      if (std::optional<TemporaryKeys> keys = keys_in_profile(profile)) return *std::move(keys);
      break;
    }
    case Source::kEnvironment: break;
  }
  return Error(ErrorCode::kUnavailable, "the keys of AWS are gone from their source");
}

Result<SigningKeys> BucketCredentials::current(const os::StopFlag* stop) {
  const std::lock_guard lock(mutex_);
  const double now = clock_();
  const bool is_due = !keys_ || (keys_->expires_at != 0 && now >= keys_->expires_at - kRenewBefore);
  const bool is_expired = !keys_ || (keys_->expires_at != 0 && now >= keys_->expires_at);
  if (is_expired || (is_due && now >= next_try_)) {
    Result<TemporaryKeys> fetched = fetch(stop);
    if (fetched) {
      keys_ = *std::move(fetched);
    } else if (is_expired) {
      return std::move(fetched).error();
    }
    next_try_ = now + kPauseAfterFailure;  // also for a service that gives keys of a short life
  }
  if (!is_header_text(keys_->access_key) || !is_header_text(keys_->session_token)) {
    return Error(ErrorCode::kInvalidArgument, "a key of AWS has a space or a control character");
  }
  return SigningKeys{keys_->access_key, keys_->secret_key, keys_->session_token};
}

bool BucketCredentials::renew(const SigningKeys& refused) {
  const std::lock_guard lock(mutex_);
  if (keys_ && keys_->access_key != refused.access_key) return true;  // another thread has renewed them
  if (source_ == Source::kEnvironment) return false;
  if (source_ == Source::kProfile) {
    const Result<TemporaryKeys> fetched = fetch(nullptr);
    if (!fetched || fetched->access_key == refused.access_key) return false;
    keys_ = *fetched;
    return true;
  }
  keys_.reset();
  return true;
}

}  // namespace cairn::storage
