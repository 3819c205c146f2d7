#include "storage/bucket/bucket_settings.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "storage/testing/scratch_directory.h"

namespace cairn::storage {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(Variables variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() || found->second.empty() ? std::nullopt : std::optional(found->second);
  };
}

Profile profile_of(std::string_view config, const std::string& name = "default") {
  return {name, {}, parse_profile_file(config, "config").value()};
}

BucketSettings settings_of(Variables variables, std::string_view config = "", const char* address = "s3://bucket") {
  return read_bucket_settings(*parse_bucket_address(address), environment_of(std::move(variables)), profile_of(config))
      .value();
}

TEST(BucketSettings, AreThoseOfAmazonByDefault) {
  const BucketSettings settings = settings_of({});
  EXPECT_EQ(settings.scheme_and_host, "https://s3.us-east-1.amazonaws.com");
  EXPECT_EQ(settings.region, "us-east-1");
  EXPECT_EQ(settings.style, AddressingStyle::kVirtual);
  EXPECT_TRUE(settings.has_checksums);
  EXPECT_FALSE(settings.is_endpoint_given);
  EXPECT_EQ(settings_of({}, "", "s3://a.bucket").style, AddressingStyle::kPath);
}

TEST(BucketSettings, TakeTheRegionInOrder) {
  constexpr const char* kConfig = "[default]\nregion = eu-west-1\n";
  EXPECT_EQ(settings_of({}, kConfig).region, "eu-west-1");
  EXPECT_EQ(settings_of({{"AWS_DEFAULT_REGION", "eu-west-2"}}, kConfig).region, "eu-west-2");
  EXPECT_EQ(settings_of({{"AWS_DEFAULT_REGION", "eu-west-2"}, {"AWS_REGION", "eu-west-3"}}, kConfig).region,
            "eu-west-3");
  EXPECT_EQ(settings_of({{"AWS_REGION", "cn-north-1"}}).host, "s3.cn-north-1.amazonaws.com.cn");
}

TEST(BucketSettings, TakeTheEndpointInOrder) {
  constexpr const char* kConfig =
      "[default]\nendpoint_url = http://d:1\nservices = mine\n[services mine]\ns3 =\n  endpoint_url = http://c:1/x/\n";
  Variables variables;
  EXPECT_EQ(settings_of(variables, "[default]\nendpoint_url = http://d:1\n").host, "d:1");
  EXPECT_EQ(settings_of(variables, kConfig).host, "c:1");
  EXPECT_EQ(settings_of(variables, kConfig).path, "/x");
  variables["AWS_ENDPOINT_URL"] = "http://b:1";
  EXPECT_EQ(settings_of(variables, kConfig).host, "b:1");
  variables["AWS_ENDPOINT_URL_S3"] = "http://a:1";
  EXPECT_EQ(settings_of(variables, kConfig).host, "a:1");
  EXPECT_TRUE(settings_of(variables, kConfig).is_endpoint_given);
  variables["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "true";
  EXPECT_EQ(settings_of(variables, kConfig).host, "s3.us-east-1.amazonaws.com");
}

TEST(BucketSettings, TakeTheStyleOfTheProfile) {
  const Variables own{{"AWS_ENDPOINT_URL", "http://store.example:9000"}};
  EXPECT_EQ(settings_of(own).style, AddressingStyle::kPath);
  EXPECT_EQ(settings_of(own, "[default]\ns3 =\n  addressing_style = virtual\n").style, AddressingStyle::kVirtual);
  EXPECT_EQ(settings_of({}, "[default]\ns3 =\n  addressing_style = path\n").style, AddressingStyle::kPath);
  EXPECT_EQ(settings_of({{"AWS_ENDPOINT_URL", "https://s3.eu-west-1.amazonaws.com"}}).style, AddressingStyle::kVirtual);
}

TEST(BucketSettings, RefuseEndpointsThatAreNoHosts) {
  for (const char* url : {"host:1", "ftp://host", "http://", "http://user:pw@host", "http://host:port",
                          "http://host/?a", "http://host:70000", "http://[::1", "http://ho st", "http://host/a b"}) {
    const Result<BucketSettings> settings = read_bucket_settings(
        *parse_bucket_address("s3://bucket"), environment_of({{"AWS_ENDPOINT_URL", url}}), profile_of(""));
    ASSERT_FALSE(settings) << url;
    EXPECT_EQ(std::string(settings.error().what()).find("pw"), std::string::npos);
  }
  EXPECT_EQ(settings_of({{"AWS_ENDPOINT_URL", "http://[::1]:9000"}}).host, "[::1]:9000");
}

TEST(BucketSettings, OfGoogleHaveNoRegion) {
  const BucketSettings settings = settings_of({{"AWS_ENDPOINT_URL", "http://a:1"}}, "", "gs://bucket");
  EXPECT_EQ(settings.scheme_and_host, "https://storage.googleapis.com");
  EXPECT_EQ(settings.style, AddressingStyle::kPath);
  EXPECT_FALSE(settings.has_checksums);
}

TEST(BucketSettings, MayTurnChecksumsOff) {
  EXPECT_FALSE(settings_of({{"AWS_REQUEST_CHECKSUM_CALCULATION", "when_required"}}).has_checksums);
  EXPECT_FALSE(settings_of({}, "[default]\nrequest_checksum_calculation = when_required\n").has_checksums);
}

TEST(Profile, ReadsSectionsAndRemarks) {
  const Profile profile = profile_of("# a remark\n[profile p]\r\na = 1 # one\r\n;x\n\ns3 =\n  b = 2\nc=3\n", "p");
  EXPECT_EQ(profile.setting("a"), "1");
  EXPECT_EQ(profile.setting("s3.b"), "2");
  EXPECT_EQ(profile.setting("c"), "3");
  EXPECT_EQ(profile.setting("s3"), std::nullopt);
  EXPECT_FALSE(profile_of("[p]\na = 1\n", "p").exists());  // the config file says "profile"
}

TEST(Profile, NamesTheLineAndHidesTheText) {
  const Result<ProfileSections> sections = parse_profile_file("[a]\nb = 1\nsecret\n", "file");
  ASSERT_FALSE(sections);
  const std::string text = sections.error().what();
  EXPECT_NE(text.find("line 3"), std::string::npos) << text;
  EXPECT_EQ(text.find("secret"), std::string::npos) << text;
}

TEST(Profile, IsTheNamedProfileOfTheFiles) {
  const ScratchDirectory directory;
  std::ofstream(directory.path() / "credentials") << "[p]\naws_access_key_id = k\n";
  std::ofstream(directory.path() / "config") << "[profile p]\nregion = r\naws_access_key_id = other\n";
  Variables variables{{"AWS_PROFILE", "p"},
                      {"AWS_SHARED_CREDENTIALS_FILE", directory.path() / "credentials"},
                      {"AWS_CONFIG_FILE", directory.path() / "config"}};
  const Result<Profile> profile = read_profile(environment_of(variables));
  ASSERT_TRUE(profile) << profile.error().what();
  EXPECT_EQ(profile->setting("aws_access_key_id"), "k");
  EXPECT_EQ(profile->setting("region"), "r");
  variables["AWS_PROFILE"] = "missing";
  EXPECT_EQ(read_profile(environment_of(variables)).error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::storage
