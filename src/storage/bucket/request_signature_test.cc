#include "storage/bucket/request_signature.h"

#include <gtest/gtest.h>

#include "core/sha256.h"

namespace cairn::storage {
namespace {

// The keys, times and signatures are those of AWS's documents. The secret keys are examples, made public by AWS.
const SigningKeys kSuiteKeys{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
const SigningKeys kDocumentKeys{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
constexpr std::string_view kSuiteDate = "20150830T123600Z";
constexpr std::string_view kDocumentDate = "20130524T000000Z";

std::string signature_in(const std::string& authorization) {
  return authorization.substr(authorization.find("Signature=") + std::string_view("Signature=").size());
}

std::string suite_signature(const std::string& method, const std::string& path, const QueryParameters& query,
                            std::vector<HttpHeader> more = {}) {
  UnsignedRequest request{method, path, query_text(query), {}, hex_text(sha256(""))};
  request.headers = {{"host", "example.amazonaws.com"}, {"x-amz-date", std::string(kSuiteDate)}};
  request.headers.insert(request.headers.end(), more.begin(), more.end());
  return signature_in(
      authorization_of(request, kSuiteKeys, {StoreDialect::kAmazon, "us-east-1", "service", std::string(kSuiteDate)}));
}

// An example of the pages on S3.
std::string document_signature(const std::string& method, const std::string& path, const QueryParameters& query,
                               std::vector<HttpHeader> headers, std::string_view body = "") {
  const std::string hash = hex_text(sha256(body));
  headers.push_back({"host", "examplebucket.s3.amazonaws.com"});
  headers.push_back({"x-amz-content-sha256", hash});
  headers.push_back({"x-amz-date", std::string(kDocumentDate)});
  const UnsignedRequest request{method, path, query_text(query), headers, hash};
  return signature_in(
      authorization_of(request, kDocumentKeys, {StoreDialect::kAmazon, "us-east-1", "s3", std::string(kDocumentDate)}));
}

TEST(RequestSignature, EqualsTheSuiteOfAmazon) {
  EXPECT_EQ(suite_signature("GET", "/", {}), "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  EXPECT_EQ(suite_signature("POST", "/", {}), "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
  EXPECT_EQ(suite_signature("GET", "/", {{"Param2", "value2"}, {"Param1", "value1"}}),
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
}

TEST(RequestSignature, EqualsTheExamplesOfS3) {
  EXPECT_EQ(document_signature("GET", "/test.txt", {}, {{"range", "bytes=0-9"}}),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(
      document_signature("PUT", "/" + percent_encoded("test$file.text", SlashEncoding::kKept), {},
                         {{"date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                         "Welcome to Amazon S3."),
      "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  EXPECT_EQ(document_signature("GET", "/", {{"lifecycle", ""}}, {}),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(document_signature("GET", "/", {{"prefix", "J"}, {"max-keys", "2"}}, {}),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(RequestSignature, FoldsSpaceInsideOfHeaders) {
  EXPECT_EQ(suite_signature("GET", "/", {}, {{"my-header1", "  a   b   c  "}}),
            suite_signature("GET", "/", {}, {{"my-header1", "a b c"}}));
}

TEST(RequestSignature, NamesKeyAndScopeOfTheStore) {
  const UnsignedRequest request{"GET", "/", "", {{"host", "h"}, {"x-goog-date", "d"}}, "UNSIGNED-PAYLOAD"};
  const std::string authorization =
      authorization_of(request, kSuiteKeys, {StoreDialect::kGoogle, "auto", "storage", std::string(kSuiteDate)});
  EXPECT_EQ(
      authorization.substr(0, authorization.find(", Signature=")),
      "GOOG4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/auto/storage/goog4_request, SignedHeaders=host;x-goog-date");
}

}  // namespace
}  // namespace cairn::storage
