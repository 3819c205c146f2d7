#include "storage/bucket/store_answer.h"

#include <gtest/gtest.h>

#include <string>

#include "storage/bucket/xml_reader.h"

namespace cairn::storage {
namespace {

ErrorCode code_of_listing(std::string_view text, std::string_view prefix = "") {
  const Result<ObjectPage> page = decode_listing(text, prefix, StoreDialect::kAmazon);
  return page ? ErrorCode::kInternal : page.error().code();
}

std::string listing_of(const std::string& content) { return "<ListBucketResult>" + content + "</ListBucketResult>"; }

TEST(StoreAnswer, ListsObjectsOfAmazon) {
  const Result<ObjectPage> page = decode_listing(
      R"(<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix>p/</Prefix>
  <IsTruncated>true</IsTruncated><NextContinuationToken>to&amp;ken</NextContinuationToken>
  <Contents><Key>p/a b</Key><LastModified>1994-11-06T08:49:37.000Z</LastModified><ETag>&quot;tag&quot;</ETag>
    <Size>7</Size><Owner><ID>x</ID></Owner></Contents>
  <CommonPrefixes><Prefix>p/f/</Prefix></CommonPrefixes></ListBucketResult>)",
      "p/", StoreDialect::kAmazon);
  ASSERT_TRUE(page) << page.error().what();
  ASSERT_EQ(page->objects.size(), 1u);
  EXPECT_EQ(page->objects[0].key, "p/a b");
  EXPECT_EQ(page->objects[0].version.tag, "\"tag\"");
  EXPECT_EQ(page->objects[0].version.size, 7u);
  EXPECT_EQ(page->objects[0].version.changed_at, 784111777.0);
  EXPECT_EQ(page->folders, std::vector<std::string>{"p/f/"});
  EXPECT_EQ(page->next, "to&ken");
}

TEST(StoreAnswer, ListsGenerationsOfGoogle) {
  const Result<ObjectPage> page = decode_listing(
      listing_of("<Contents><Key>a</Key><Generation>15</Generation><ETag>\"e\"</ETag><Size>1</Size></Contents>"), "",
      StoreDialect::kGoogle);
  ASSERT_TRUE(page) << page.error().what();
  EXPECT_EQ(page->objects.at(0).version.tag, "15");
}

TEST(StoreAnswer, DecodesKeysInPercentEncoding) {
  const Result<ObjectPage> page = decode_listing(
      listing_of("<Contents><Key>a+b%2Bc</Key><Size>1</Size></Contents><EncodingType>url</EncodingType>"), "",
      StoreDialect::kAmazon);
  ASSERT_TRUE(page) << page.error().what();
  EXPECT_EQ(page->objects.at(0).key, "a b+c");
}

TEST(StoreAnswer, RefusesKeysThatLeaveThePrefix) {
  for (const char* key : {"q/a", "p/../a", "p/..", "p//a", "p/a%0A", "../p/a", "p"}) {
    const std::string text = listing_of("<Contents><Key>" + std::string(key) +
                                        "</Key><Size>1</Size></Contents><EncodingType>url</EncodingType>");
    EXPECT_EQ(code_of_listing(text, "p/"), ErrorCode::kUnsafe) << key;
  }
  EXPECT_EQ(code_of_listing(listing_of("<CommonPrefixes><Prefix>q/</Prefix></CommonPrefixes>"), "p/"),
            ErrorCode::kUnsafe);
}

TEST(StoreAnswer, RefusesListingsWithoutParts) {
  for (const char* content : {"<Contents><Key>a</Key></Contents>", "<Contents><Key>a</Key><Size>-1</Size></Contents>",
                              "<Contents><Key>a</Key><Size>1x</Size></Contents>", "<IsTruncated>true</IsTruncated>",
                              "<CommonPrefixes><Prefix>a</Prefix></CommonPrefixes>"}) {
    EXPECT_EQ(code_of_listing(listing_of(content)), ErrorCode::kUnsafe) << content;
  }
  EXPECT_EQ(code_of_listing("<ListPartsResult></ListPartsResult>"), ErrorCode::kUnsafe);
}

TEST(StoreAnswer, ReadsFaultsAndOtherTexts) {
  const StoreFault fault = decode_fault("<Error><Code>NoSuchKey</Code><Message>a\xff</Message><Key>k</Key></Error>");
  EXPECT_EQ(fault.code, "NoSuchKey");
  EXPECT_EQ(fault.message, "a?");
  EXPECT_EQ(decode_fault("<html><body>502</body></html>").code, "");
  EXPECT_EQ(decode_fault("").code, "");
  EXPECT_EQ(decode_fault("<ErrorResponse><Error><Code>ExpiredToken</Code></Error></ErrorResponse>").code,
            "ExpiredToken");
}

TEST(StoreAnswer, ReadsUploadsAndParts) {
  EXPECT_EQ(
      *decode_begun_upload("<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"),
      "u");
  EXPECT_FALSE(decode_begun_upload("<InitiateMultipartUploadResult></InitiateMultipartUploadResult>"));
  const Result<PartPage> page = decode_part_page(
      "<ListPartsResult><IsTruncated>true</IsTruncated><NextPartNumberMarker>3</NextPartNumberMarker><Part>"
      "<PartNumber>3</PartNumber><ETag>e</ETag><Size>9</Size><ChecksumCRC32>y/Q5Jg==</ChecksumCRC32></Part></"
      "ListPartsResult>");
  ASSERT_TRUE(page) << page.error().what();
  EXPECT_EQ(page->parts.at(0).crc32, 0xCBF43926u);
  EXPECT_EQ(page->parts.at(0).tag, "\"e\"");
  EXPECT_EQ(page->next_number, 3u);
  EXPECT_FALSE(decode_part_page("<ListPartsResult><Part><PartNumber>0</PartNumber></Part></ListPartsResult>"));
  const Result<std::optional<RemovalFault>> removals = decode_removals(
      "<DeleteResult><Error><Key>a</Key><Code>NoSuchKey</Code></Error><Error><Key>b</Key><Code>AccessDenied</Code></"
      "Error>"
      "</DeleteResult>");
  ASSERT_TRUE(removals);
  EXPECT_EQ((*removals)->key, "b");
}

TEST(StoreAnswer, CodesChecksumsInBase64) {
  EXPECT_EQ(crc32_in_base64(0xCBF43926u), "y/Q5Jg==");
  for (const std::uint32_t crc : {0u, 1u, 0x80000000u, 0xFFFFFFFFu})
    EXPECT_EQ(crc32_of_base64(crc32_in_base64(crc)), crc);
  for (const char* text : {"", "y/Q5Jg", "y/Q5Jg==-2", "y/Q5Jh==", "y*Q5Jg=="}) {
    EXPECT_EQ(crc32_of_base64(text), std::nullopt) << text;
  }
}

TEST(XmlReader, RefusesTextsOfNoStore) {
  for (const char* text :
       {"", "x", "<a>", "<a></b>", "</a>", "<a/><b/>", "<a b></a>", "<a b=c/>", "<a b='<'/>", "<a>&x;</a>",
        "<a>&#0;</a>", "<a>&#xD800;</a>", "<a>&amp</a>", "<!DOCTYPE a [<!ENTITY x \"y\">]><a>&x;</a>",
        "<a><![CDATA[x]]></a>", "<a><?x?></a>", "<a></a>x", "<a><!-- </a>"}) {
    XmlReader reader(text);
    const bool is_read = reader.begin() && reader.skip() && reader.end();
    EXPECT_FALSE(is_read) << text;
  }
}

TEST(XmlReader, ReadsTextAndSkipsTheRest) {
  XmlReader reader(
      "\xEF\xBB\xBF<?xml version='1.0'?><!-- a --><r x=\"1\"><a>&lt;&#233;&#x1F600;</a> <b/> <c>x<d>y</d>z</c></r> ");
  EXPECT_EQ(*reader.begin(), "r");
  EXPECT_EQ(**reader.next_element(), "a");
  EXPECT_EQ(*reader.read_text(), "<\xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_EQ(**reader.next_element(), "b");
  EXPECT_EQ(*reader.read_text(), "");
  EXPECT_EQ(**reader.next_element(), "c");
  EXPECT_TRUE(reader.skip());
  EXPECT_EQ(*reader.next_element(), std::nullopt);
  EXPECT_TRUE(reader.end());
}

TEST(XmlReader, RefusesDeepNesting) {
  std::string text;
  for (std::size_t i = 0; i <= kXmlDepthMax; ++i) text += "<a>";
  XmlReader reader(text);
  ASSERT_TRUE(reader.begin());
  EXPECT_NE(std::string(reader.skip().error().what()).find("16 nested"), std::string::npos);
}

}  // namespace
}  // namespace cairn::storage
