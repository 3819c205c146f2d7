#include "format/manifest/commit_record.h"

#include <gtest/gtest.h>

#include "core/checksum.h"

namespace cairn::manifest {
namespace {

const std::string kPickle = "not really a pickle, but bytes.";

CommitRecord example_record() {
  CommitRecord record;
  record.save_id = {1, 2};
  record.job_id = {UINT64_MAX, 4};
  record.job_start = kJobStartMax;
  record.save_number = 300;
  record.files = {{"__0_0.distcp", 5'000'000'000, 0xDEADBEEF}, {"__1_0.distcp", 0, 0}};
  record.plan = {{{2, {5, UINT64_MAX}}, {0, {6, 7}}}};
  record.front_bytes = kPickle.size();
  record.front_checksum = crc32(std::as_bytes(std::span(kPickle)));
  return record;
}

Result<std::optional<CommitRecord>> read_record(const std::string& file) {
  return read_commit_record(std::as_bytes(std::span(file)));
}

TEST(CommitRecord, IsReadBackAsWritten) {
  EXPECT_EQ(read_record(kPickle + encode_commit_record(example_record())).value(), example_record());
  CommitRecord none = example_record();
  none.files.clear();
  none.plan = {};
  EXPECT_EQ(read_record(kPickle + encode_commit_record(none)).value(), none);
}

TEST(CommitRecord, HasVersion2WithoutAPlan) {
  CommitRecord record = example_record();
  record.plan = {};
  const std::string file = kPickle + encode_commit_record(record);
  EXPECT_EQ(file[file.size() - 12], 2);
  EXPECT_EQ(read_record(file).value(), record);
  const std::string with_plan = kPickle + encode_commit_record(example_record());
  EXPECT_EQ(with_plan[with_plan.size() - 12], 3);
}

// Checksums are no help against a record that was made with them.
TEST(CommitRecord, RefusesAPlanOfWrongFileCounts) {
  for (const std::uint32_t count : {0u, 1u, 3u, UINT32_MAX}) {
    CommitRecord record = example_record();
    record.plan.ranks[0].file_count = count;
    EXPECT_EQ(read_record(kPickle + encode_commit_record(record)).error().code(), ErrorCode::kCorrupt);
  }
}

TEST(CommitRecord, IsAbsentFromStockMetadata) {
  EXPECT_FALSE(read_record("").value());
  EXPECT_FALSE(read_record(kPickle).value());
  EXPECT_FALSE(read_record(std::string(1000, '.')).value());
}

TEST(CommitRecord, AnySingleChangeIsNoticed) {
  const std::string good = kPickle + encode_commit_record(example_record());
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      const auto record = read_record(bad);
      const bool in_magic = i >= good.size() - 8;
      ASSERT_EQ(record.has_value(), in_magic) << "byte " << i << " bit " << bit;
      if (in_magic) {
        EXPECT_FALSE(*record);
      } else {
        EXPECT_EQ(record.error().code(), ErrorCode::kCorrupt);
      }
    }
  }
}

TEST(CommitRecord, RefusesALongerOrShorterFile) {
  const std::string good = kPickle + encode_commit_record(example_record());
  EXPECT_EQ(read_record("x" + good).error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(read_record(good.substr(1)).error().code(), ErrorCode::kCorrupt);
}

std::string replaced_footer_checksum(std::string file) {
  const std::uint32_t checksum = crc32(std::as_bytes(std::span(file)).last(36));
  return file.replace(file.size() - 40, 4, reinterpret_cast<const char*>(&checksum), 4);
}

TEST(CommitRecord, LaterVersionIsUnsupported) {
  std::string file = kPickle + encode_commit_record(example_record());
  file[file.size() - 12] = 4;
  const auto record = read_record(replaced_footer_checksum(file));
  ASSERT_FALSE(record);
  EXPECT_EQ(record.error().code(), ErrorCode::kUnsupported);
}

// Footer and body of version 1: without the eight bytes of the job's start behind the two ids.
TEST(CommitRecord, Version1HasNoStartOfTheJob) {
  CommitRecord expected = example_record();
  expected.plan = {};
  const std::string written = encode_commit_record(expected);
  constexpr std::size_t kIdBytes = 32, kStartBytes = 8, kFooterBytes = 40;
  const std::string body =
      written.substr(0, kIdBytes) +
      written.substr(kIdBytes + kStartBytes, written.size() - kFooterBytes - kIdBytes - kStartBytes);
  std::string footer = written.substr(written.size() - kFooterBytes);
  const std::uint32_t body_checksum = crc32(std::as_bytes(std::span(body)));
  const std::uint64_t body_bytes = body.size();
  footer.replace(4, 4, reinterpret_cast<const char*>(&body_checksum), 4);
  footer.replace(8, 8, reinterpret_cast<const char*>(&body_bytes), 8);
  footer[28] = 1;
  expected.job_start = 0;
  EXPECT_EQ(read_record(replaced_footer_checksum(kPickle + body + footer)).value(), expected);
}

TEST(CommitRecord, RefusesAStartBeyondTheMaximum) {
  CommitRecord record = example_record();
  record.job_start = kJobStartMax + 1;
  EXPECT_EQ(read_record(kPickle + encode_commit_record(record)).error().code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace cairn::manifest
