// BucketCredentials: the keys by which requests to an object store are signed, renewed before they expire.
//
// The sources and their order are those of the AWS SDKs:
// 1. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with AWS_SESSION_TOKEN.
// 2. AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, of the environment or the profile.
// 3. aws_access_key_id and aws_secret_access_key of the profile, from the credentials file or the config file.
// 4. The service of the container: AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI.
// 5. The metadata service of the instance, unless AWS_EC2_METADATA_DISABLED is true.
// The first source that is set is used, and no source after it. For gs://, sources 1 and 3 alone.
//
// Thread-safe. No text of this class holds a part of a key.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "os/parallel.h"
#include "storage/bucket/bucket_settings.h"
#include "storage/bucket/http_transfer.h"
#include "storage/bucket/request_signature.h"
#include "storage/bucket/temporary_keys.h"

namespace cairn::storage {

class BucketCredentials {
 public:
  // Seconds since the epoch.
  using Clock = std::function<double()>;

  // kInvalidArgument for a setting that is not understood, kUnsupported for a profile with a source that Cairn does not
  // have. Asks no service yet.
  static Result<std::unique_ptr<BucketCredentials>> open(const BucketAddress& address, const BucketSettings& settings,
                                                         const Environment& environment, Clock clock);

  // The keys for a request now. Keys that expire within minutes are renewed; if the service fails, they are used until
  // they expire.
  Result<SigningKeys> current(const os::StopFlag* stop);
  // The store has refused the keys as expired: the next current() asks the source again. False if the source has
  // nothing newer.
  bool renew(const SigningKeys& refused);

 private:
  enum class Source : std::uint8_t { kEnvironment, kWebIdentity, kProfile, kContainer, kInstance };

  explicit BucketCredentials(Environment environment, Clock clock)
      : environment_(std::move(environment)), clock_(std::move(clock)) {}
  Result<void> choose(const BucketAddress& address, const BucketSettings& settings, const Profile& profile);
  bool choose_web_identity(const BucketSettings& settings, const Profile& profile);
  bool choose_container();
  Result<TemporaryKeys> fetch(const os::StopFlag* stop);

  Environment environment_;
  Clock clock_;
  Source source_ = Source::kInstance;
  ContainerService container_;
  InstanceService instance_;
  WebIdentity identity_;
  std::unique_ptr<HttpConnections> http_;  // of the services; null for sources without one

  std::mutex mutex_;
  std::optional<TemporaryKeys> keys_;  // expires_at 0: never
  double next_try_ = 0;                // after a failed renewal, by the clock
};

}  // namespace cairn::storage
