// BucketSettings: the address, region and rules of an object store, from the environment and the files of AWS.
//
// The settings and their order are those of the AWS SDKs: an environment variable comes before the profile, the setting
// for S3 alone before the setting for all services. For gs:// only the keys are read from there.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "storage/bucket/bucket_address.h"
#include "storage/bucket/profile_file.h"

namespace cairn::storage {

// Reads an environment variable; nullopt if it is not set. An empty variable counts as not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;
Environment process_environment();

// How an address of the store names the bucket.
enum class AddressingStyle : std::uint8_t {
  kPath,     // https://endpoint/bucket/key
  kVirtual,  // https://bucket.endpoint/key
};

struct BucketSettings {
  std::string scheme_and_host = {};  // "https://s3.us-east-1.amazonaws.com", with the port if given, without bucket
  std::string host = {};             // "s3.us-east-1.amazonaws.com", with the port if given
  std::string path = {};             // of the endpoint: empty or "/storage/v1/s3", in percent encoding
  AddressingStyle style = AddressingStyle::kPath;
  std::string region = {};
  bool is_endpoint_given = false;  // by the user: the host does not follow from the region
  bool has_checksums = true;       // uploads carry their CRC-32
  std::string ca_file = {};        // empty: the certificates of the system
};

// The settings for the bucket. kInvalidArgument names a setting that is not understood.
Result<BucketSettings> read_bucket_settings(const BucketAddress& address, const Environment& environment,
                                            const Profile& profile);

// The endpoint of AWS for the region.
void set_amazon_host(BucketSettings& settings, std::string_view region);

}  // namespace cairn::storage
