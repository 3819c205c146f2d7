#include "storage/bucket/bucket_address.h"

#include <gtest/gtest.h>

#include "storage/bucket/store_time.h"

namespace cairn::storage {
namespace {

TEST(BucketAddress, HasBucketAndPrefix) {
  const Result<BucketAddress> amazon = parse_bucket_address("s3://my-bucket.a/run 7/step_10/");
  ASSERT_TRUE(amazon);
  EXPECT_EQ(amazon->bucket, "my-bucket.a");
  EXPECT_EQ(amazon->prefix, "run 7/step_10");
  EXPECT_EQ(amazon->dialect, StoreDialect::kAmazon);
  EXPECT_EQ(amazon->text(), "s3://my-bucket.a/run 7/step_10");
  const Result<BucketAddress> google = parse_bucket_address("gs://my_bucket");
  ASSERT_TRUE(google);
  EXPECT_EQ(google->prefix, "");
  EXPECT_EQ(google->dialect, StoreDialect::kGoogle);
  EXPECT_EQ(google->text(), "gs://my_bucket");
}

TEST(BucketAddress, RefusesNamesOfNoBucket) {
  for (const char* text : {"s3:/bucket/a", "s3://", "s3:///a", "s3://ab/a", "s3://Bucket/a", "s3://a_b/c",
                           "s3://-abc/d", "s3://a..b/c", "http://bucket/a", "/s3://bucket"}) {
    const Result<BucketAddress> address = parse_bucket_address(text);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(address.error().code(), ErrorCode::kInvalidArgument) << text;
  }
}

TEST(BucketAddress, RefusesPrefixesOfOddParts) {
  for (const char* prefix : {"/", "a//b", "a/../b", "..", "./a", "a/.", "a\nb", "a\x7f", "\xff"}) {
    EXPECT_FALSE(parse_bucket_address(std::string("s3://bucket//") + prefix)) << prefix;
    EXPECT_FALSE(check_key(std::string(prefix))) << prefix;
  }
  EXPECT_FALSE(check_key(std::string(kKeyBytesMax + 1, 'a')));
  EXPECT_TRUE(check_key(std::string(kKeyBytesMax, 'a')));
  EXPECT_TRUE(check_key("a/...b/\xc3\xa9"));
}

TEST(PercentEncoding, KeepsOnlyUnreservedBytes) {
  EXPECT_EQ(percent_encoded("aZ09-._~/ +%\xc3\xa9$", SlashEncoding::kKept), "aZ09-._~/%20%2B%25%C3%A9%24");
  EXPECT_EQ(percent_encoded("a/b", SlashEncoding::kEncoded), "a%2Fb");
}

TEST(PercentEncoding, IsUndoneByTheDecoder) {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  const Result<std::string> decoded = percent_decoded(percent_encoded(all, SlashEncoding::kEncoded));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, all);
  EXPECT_EQ(*percent_decoded("a+b"), "a b");
  for (const char* text : {"%", "%4", "%4g", "%+1", "a%"}) EXPECT_FALSE(percent_decoded(text)) << text;
}

TEST(StoreTime, ReadsDatesOfHeadersAndAnswers) {
  EXPECT_EQ(time_of_http_date("Sun, 06 Nov 1994 08:49:37 GMT"), 784111777.0);
  EXPECT_EQ(time_of_iso_date("1994-11-06T08:49:37.123Z"), 784111777.0);
  EXPECT_EQ(time_of_iso_date("1994-11-06T08:49:37Z"), 784111777.0);
  EXPECT_EQ(compact_date(784111777), "19941106T084937Z");
}

TEST(StoreTime, RefusesTextsThatAreNoDates) {
  for (const char* text : {"", "Sun, 06 Nov 1994 08:49:37", "Sun, 31 Feb 1994 08:49:37 GMT", "06 Nov 1994",
                           "Sun, 06 Nov 1994 25:49:37 GMT", "Sun, -6 Nov 1994 08:49:37 GMT"}) {
    EXPECT_EQ(time_of_http_date(text), std::nullopt) << text;
  }
  for (const char* text : {"", "1994-11-06", "1994-13-06T08:49:37Z", "1994-11-06T08:49:37", "1994-11-06T08:49:37.Z",
                           "1994-11-06T08:49:37+Z"}) {
    EXPECT_EQ(time_of_iso_date(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace cairn::storage
