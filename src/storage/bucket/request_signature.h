// The signature of a request to an object store: AWS Signature Version 4, and the same with the names of Google.
//
// Pure functions. https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/bucket/bucket_address.h"

namespace cairn::storage {

// A header of a request or an answer. Names are in lower case.
struct HttpHeader {
  std::string name;
  std::string value;
};

// Names and values without percent encoding.
using QueryParameters = std::vector<std::pair<std::string, std::string>>;

// In the order of the signature: "a=1&b=", both parts in percent encoding.
std::string query_text(const QueryParameters& query);

struct SigningKeys {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // empty: none
};

// The place and time for which a signature counts.
struct SignatureScope {
  StoreDialect dialect = StoreDialect::kAmazon;
  std::string region;
  std::string service = "s3";
  std::string date;  // as compact_date()
};

struct UnsignedRequest {
  std::string method;
  std::string path;   // in percent encoding, with the '/' at its begin
  std::string query;  // of query_text()
  std::vector<HttpHeader> headers;
  std::string payload_hash;  // hexadecimal, or "UNSIGNED-PAYLOAD"
};

// The value of the header "authorization", which signs all headers of the request.
std::string authorization_of(const UnsignedRequest& request, const SigningKeys& keys, const SignatureScope& scope);

}  // namespace cairn::storage
