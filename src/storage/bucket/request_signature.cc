#include "storage/bucket/request_signature.h"

#include <algorithm>

#include "core/sha256.h"

namespace cairn::storage {
namespace {

// The words by which the dialects differ.
struct SignatureWords {
  std::string_view algorithm;
  std::string_view key_begin;
  std::string_view scope_end;
};

SignatureWords words_of(StoreDialect dialect) {
  if (dialect == StoreDialect::kGoogle) return {"GOOG4-HMAC-SHA256", "GOOG4", "goog4_request"};
  return {"AWS4-HMAC-SHA256", "AWS4", "aws4_request"};
}

// Without space at both ends, and with one space for several.
std::string folded_space(std::string_view value) {
  std::string folded;
  for (const char c : value) {
    const bool is_space = c == ' ' || c == '\t';
    if (is_space && (folded.empty() || folded.back() == ' ')) continue;
    folded += is_space ? ' ' : c;
  }
  if (!folded.empty() && folded.back() == ' ') folded.pop_back();
  return folded;
}

}  // namespace

std::string query_text(const QueryParameters& query) {
  std::vector<std::pair<std::string, std::string>> encoded;
  for (const auto& [name, value] : query) {
    encoded.emplace_back(percent_encoded(name, SlashEncoding::kEncoded),
                         percent_encoded(value, SlashEncoding::kEncoded));
  }
  std::sort(encoded.begin(), encoded.end());
  std::string text;
  for (const auto& [name, value] : encoded) {
    if (!text.empty()) text += '&';
    text += name;
    text += '=';
    text += value;
  }
  return text;
}

std::string authorization_of(const UnsignedRequest& request, const SigningKeys& keys, const SignatureScope& scope) {
  const SignatureWords words = words_of(scope.dialect);
  std::vector<HttpHeader> headers = request.headers;
  std::stable_sort(headers.begin(), headers.end(),
                   [](const HttpHeader& a, const HttpHeader& b) { return a.name < b.name; });
  std::string signed_names;
  std::string canonical = request.method + "\n" + request.path + "\n" + request.query + "\n";
  for (const HttpHeader& header : headers) {
    canonical += header.name + ":" + folded_space(header.value) + "\n";
    signed_names += (signed_names.empty() ? "" : ";") + header.name;
  }
  canonical += "\n" + signed_names + "\n" + request.payload_hash;

  const std::string day = scope.date.substr(0, 8);
  const std::string place = day + "/" + scope.region + "/" + scope.service + "/" + std::string(words.scope_end);
  const std::string to_sign =
      std::string(words.algorithm) + "\n" + scope.date + "\n" + place + "\n" + hex_text(sha256(canonical));
  Sha256Digest key = hmac_sha256(std::string(words.key_begin) + keys.secret_key, day);
  key = hmac_sha256(key, scope.region);
  key = hmac_sha256(key, scope.service);
  key = hmac_sha256(key, words.scope_end);
  return std::string(words.algorithm) + " Credential=" + keys.access_key + "/" + place +
         ", SignedHeaders=" + signed_names + ", Signature=" + hex_text(hmac_sha256(key, to_sign));
}

}  // namespace cairn::storage
