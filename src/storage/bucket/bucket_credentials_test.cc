#include "storage/bucket/bucket_credentials.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "storage/bucket/store_time.h"
#include "storage/testing/http_server.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::storage {
namespace {

// The services of keys, and an environment that names them.
class Credentials : public testing::Test {
 protected:
  Credentials() : server_([this](const ServerRequest& request) { return answer(request); }) {
    variables_["AWS_SHARED_CREDENTIALS_FILE"] = directory_.path() / "credentials";
    variables_["AWS_CONFIG_FILE"] = directory_.path() / "config";
    variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = server_.url();
    variables_["AWS_ENDPOINT_URL_STS"] = server_.url();
  }
  ServerAnswer answer(const ServerRequest& request) {
    const std::string keys = R"({"Code": "Success", "AccessKeyId": "key-)" + std::to_string(++given_) +
                             R"(", "SecretAccessKey": "hidden", "Token": "t", "Expiration": "2026-01-01T01:00:00Z"})";
    if (is_down_) return {.status = 500};
    if (request.path == "/latest/api/token") return {.body = "token-of-instance"};
    if (request.path == "/latest/meta-data/iam/security-credentials/") return {.body = "role\n"};
    if (request.path == "/latest/meta-data/iam/security-credentials/role") return {.body = keys};
    if (request.path == "/container") return {.body = keys};
    if (request.method != "POST") return {.status = 404};
    return {.body =
                "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>key-" +
                std::to_string(given_) +
                "</AccessKeyId><SecretAccessKey>hidden</SecretAccessKey><SessionToken>t</SessionToken>"
                "<Expiration>2026-01-01T01:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>"
                "</AssumeRoleWithWebIdentityResponse>"};
  }
  Result<std::unique_ptr<BucketCredentials>> open(const char* address = "s3://bucket") {
    const Environment environment = [this](const char* name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    };
    return BucketCredentials::open(*parse_bucket_address(address), BucketSettings{.region = "us-east-1"}, environment,
                                   [this] { return now_; });
  }
  std::string key_of(const Result<std::unique_ptr<BucketCredentials>>& credentials) {
    if (!credentials) return credentials.error().what();
    const Result<SigningKeys> keys = (*credentials)->current(nullptr);
    return keys ? keys->access_key : keys.error().what();
  }
  void write_file(const char* name, const std::string& text) const { std::ofstream(directory_.path() / name) << text; }

  ScratchDirectory directory_;
  std::map<std::string, std::string> variables_;
  double now_ = *time_of_iso_date("2026-01-01T00:00:00Z");
  int given_ = 0;
  bool is_down_ = false;
  HttpServer server_;
};

TEST_F(Credentials, ComeFromTheFirstSource) {
  EXPECT_EQ(key_of(open()), "key-3");  // the third request to the instance
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server_.url() + "/container";
  EXPECT_EQ(key_of(open()), "key-4");
  write_file("config", "[default]\naws_access_key_id = of-config\naws_secret_access_key = s\n");
  EXPECT_EQ(key_of(open()), "of-config");
  write_file("credentials", "[default]\naws_access_key_id = of-file\naws_secret_access_key = s\n");
  EXPECT_EQ(key_of(open()), "of-file");
  write_file("token", "token-of-web\n");
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = directory_.path() / "token";
  variables_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/r";
  EXPECT_EQ(key_of(open()), "key-5");
  variables_["AWS_ACCESS_KEY_ID"] = "of-environment";
  variables_["AWS_SECRET_ACCESS_KEY"] = "s";
  EXPECT_EQ(key_of(open()), "of-environment");
}

TEST_F(Credentials, OfAnInstanceNeedItsToken) {
  EXPECT_EQ(key_of(open()), "key-3");
  const std::vector<ServerRequest> requests = server_.requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].method, "PUT");
  EXPECT_EQ(requests[0].header("x-aws-ec2-metadata-token-ttl-seconds"), "21600");
  EXPECT_EQ(requests[2].header("x-aws-ec2-metadata-token"), "token-of-instance");
  variables_["AWS_EC2_METADATA_DISABLED"] = "true";
  EXPECT_EQ(open().error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(Credentials, OfAContainerSendItsToken) {
  write_file("token", "token-of-container\n");
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server_.url() + "/container";
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = directory_.path() / "token";
  EXPECT_EQ(key_of(open()), "key-1");
  EXPECT_EQ(server_.requests().at(0).header("authorization"), "token-of-container");
}

TEST_F(Credentials, OfAContainerStayOnTheHost) {
  for (const char* url : {"http://example.com/", "http://127.0.0.1.example.com/", "ftp://localhost/", "http:///"}) {
    variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = url;
    const auto credentials = open();
    ASSERT_TRUE(credentials);
    EXPECT_EQ((*credentials)->current(nullptr).error().code(), ErrorCode::kInvalidArgument) << url;
  }
}

TEST_F(Credentials, OfARoleSendTheTokenInTheBody) {
  write_file("token", "token+of/web");
  write_file("config",
             "[default]\nrole_arn = arn:r\nweb_identity_token_file = " + (directory_.path() / "token").string());
  EXPECT_EQ(key_of(open()), "key-1");
  const ServerRequest request = server_.requests().at(0);
  EXPECT_NE(request.body.find("WebIdentityToken=token%2Bof%2Fweb"), std::string::npos) << request.body;
  EXPECT_NE(request.body.find("RoleArn=arn%3Ar&"), std::string::npos) << request.body;
}

TEST_F(Credentials, AreRenewedBeforeTheirEnd) {
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server_.url() + "/container";
  const auto credentials = open();
  EXPECT_EQ(key_of(credentials), "key-1");
  now_ += 3200;
  EXPECT_EQ(key_of(credentials), "key-1");
  now_ += 200;
  EXPECT_EQ(key_of(credentials), "key-2");
}

TEST_F(Credentials, AreUsedWhileTheServiceIsDown) {
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server_.url() + "/container";
  const auto credentials = open();
  EXPECT_EQ(key_of(credentials), "key-1");
  is_down_ = true;
  now_ += 3400;
  EXPECT_EQ(key_of(credentials), "key-1");
  const std::size_t asked = server_.requests().size();
  EXPECT_EQ(key_of(credentials), "key-1");  // no second question at once
  EXPECT_EQ(server_.requests().size(), asked);
  now_ += 300;
  EXPECT_EQ((*credentials)->current(nullptr).error().code(), ErrorCode::kUnavailable);
}

TEST_F(Credentials, AreRenewedAfterARefusal) {
  write_file("credentials", "[default]\naws_access_key_id = one\naws_secret_access_key = s\n");
  const auto credentials = open();
  const Result<SigningKeys> keys = (*credentials)->current(nullptr);
  ASSERT_TRUE(keys);
  EXPECT_FALSE((*credentials)->renew(*keys));
  write_file("credentials", "[default]\naws_access_key_id = two\naws_secret_access_key = s\n");
  EXPECT_TRUE((*credentials)->renew(*keys));
  EXPECT_EQ(key_of(credentials), "two");
}

TEST_F(Credentials, NameASourceThatIsNotRead) {
  write_file("config", "[default]\ncredential_process = /bin/keys\n");
  const auto credentials = open();
  ASSERT_FALSE(credentials);
  EXPECT_EQ(credentials.error().code(), ErrorCode::kUnsupported);
  EXPECT_NE(std::string(credentials.error().what()).find("credential_process"), std::string::npos);
}

TEST_F(Credentials, OfGoogleAreHmacKeysAlone) {
  EXPECT_EQ(open("gs://bucket").error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(Credentials, ShowNoSecretOfABadAnswer) {
  HttpServer bad([](const ServerRequest&) { return ServerAnswer{.body = R"({"SecretAccessKey": "hidden", })"}; });
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = bad.url() + "/";
  const auto credentials = open();
  ASSERT_TRUE(credentials);
  const Result<SigningKeys> keys = (*credentials)->current(nullptr);
  ASSERT_FALSE(keys);
  EXPECT_EQ(std::string(keys.error().what()).find("hidden"), std::string::npos);
}

}  // namespace
}  // namespace cairn::storage
