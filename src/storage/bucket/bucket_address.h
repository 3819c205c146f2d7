// BucketAddress: s3://bucket/prefix and gs://bucket/prefix, parsed and checked.
//
// Pure functions.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::storage {

// The protocol of a store: names of headers, signature and conditions.
enum class StoreDialect : std::uint8_t {
  kAmazon,  // S3, and the many servers that speak its protocol: tags are entity tags
  kGoogle,  // the XML protocol of Google Cloud Storage with HMAC keys: tags are generations
};

struct BucketAddress {
  StoreDialect dialect = StoreDialect::kAmazon;
  std::string bucket;
  std::string prefix;  // of keys: empty, or parts with '/' between, without a '/' at either end

  // As the user writes the address.
  std::string text() const;
};

inline constexpr std::size_t kKeyBytesMax = 1024;

// Whether `text` begins as the address of a bucket: "s3://" or "gs://".
bool is_bucket_address(std::string_view text);

// kInvalidArgument for a text that names no bucket, and for a prefix that check_key() refuses. A '/' at the end is
// dropped.
Result<BucketAddress> parse_bucket_address(std::string_view text);

// Refuses (kInvalidArgument) a key with an empty part, a part "." or "..", a control character, bytes that are not
// UTF-8, or more than kKeyBytesMax bytes.
Result<void> check_key(std::string_view key);

// `text` with each byte but A-Z a-z 0-9 - . _ ~ (RFC 3986) as %XX. In a path, '/' stays.
enum class SlashEncoding : std::uint8_t { kKept, kEncoded };
std::string percent_encoded(std::string_view text, SlashEncoding slash);

// The bytes of a text in percent encoding; with a '+' for a space, as the stores encode keys in listings. kUnsafe for
// an incomplete escape.
Result<std::string> percent_decoded(std::string_view text);

}  // namespace cairn::storage
