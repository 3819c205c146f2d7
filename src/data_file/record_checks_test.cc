#include "data_file/record_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/checksum.h"
#include "storage/open_directory.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::data_file {
namespace {

using Which = RecordChecks::Which;

constexpr std::uint64_t kRecordOffset = 100;
constexpr std::uint64_t kRecordBytes = 1000;

class RecordChecking : public testing::Test {
 protected:
  RecordChecking() : content_(kRecordOffset + kRecordBytes, '\0') {
    std::mt19937 random(1);
    for (char& byte : content_) byte = static_cast<char>(random());
    storage_ = storage::open_directory(scratch_.path()).value();
    EXPECT_TRUE(storage_->create_whole("file", content_, Durability::kBuffered));
    file_ = DataFile::open(*storage_, "file", false, nullptr, std::nullopt).value();
    stored_.record_offset = kRecordOffset;
    stored_.record_bytes = kRecordBytes;
    stored_.record_crc = crc_of(0, kRecordBytes);
  }

  std::uint32_t crc_of(std::uint64_t begin, std::uint64_t end) const {
    return crc32(std::as_bytes(std::span(content_)).subspan(kRecordOffset + begin, end - begin));
  }
  Result<void> add(std::uint64_t begin, std::uint64_t end) {
    return checks_.add(*file_, "key", stored_, {begin, end - begin, crc_of(begin, end)});
  }

  storage::ScratchDirectory scratch_;
  std::string content_;
  std::unique_ptr<storage::Storage> storage_;
  std::unique_ptr<DataFile> file_;
  StoredTensor stored_;
  os::StopFlag stop_;
  RecordChecks checks_{stop_};
};

TEST_F(RecordChecking, PiecesInAnyOrderMakeARecord) {
  std::mt19937 random(2);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::uint64_t> cuts{0, kRecordBytes};
    for (int i = 0; i < 8; ++i) cuts.push_back(random() % kRecordBytes);
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::size_t> order(cuts.size() - 1);
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t i : order) ASSERT_TRUE(add(cuts[i], cuts[i + 1]));
  }
  stop_.set();  // finish() has nothing to read
  EXPECT_TRUE(checks_.finish(Which::kAll, 2));
}

TEST_F(RecordChecking, LastPieceFindsTheDamage) {
  stored_.record_crc = *stored_.record_crc ^ 1;
  EXPECT_TRUE(add(500, 1000));
  const Result<void> added = add(0, 500);
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(added.error().key(), "key");
  EXPECT_EQ(added.error().file(), "file");
  EXPECT_EQ(added.error().offset(), kRecordOffset);
}

TEST_F(RecordChecking, PartlyReadRecordIsReadAgain) {
  EXPECT_TRUE(add(0, 10));
  EXPECT_TRUE(checks_.finish(Which::kOverlapping, 1));
  EXPECT_TRUE(checks_.finish(Which::kAll, 1));
  StoredTensor damaged = stored_;
  damaged.record_offset = kRecordOffset - 1;
  EXPECT_TRUE(checks_.add(*file_, "other", damaged, {0, 10, 0}));
  EXPECT_TRUE(checks_.finish(Which::kOverlapping, 1));
  const Result<void> finished = checks_.finish(Which::kAll, 3);
  ASSERT_FALSE(finished);
  EXPECT_EQ(finished.error().key(), "other");
}

TEST_F(RecordChecking, OverlapsAreReadAtTheEnd) {
  for (const auto& [begin, end] : {std::pair(0, 600), std::pair(599, 1000), std::pair(0, 1000)}) {
    EXPECT_TRUE(add(static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end)));
  }
  EXPECT_TRUE(checks_.finish(Which::kOverlapping, 1));
  stored_.record_bytes -= 1;  // the CRC is of one byte more
  stored_.record_offset += 1;
  EXPECT_TRUE(add(0, 2));
  EXPECT_TRUE(add(1, 3));
  EXPECT_EQ(checks_.finish(Which::kOverlapping, 1).error().code(), ErrorCode::kCorrupt);
}

TEST_F(RecordChecking, AWholeRecordIsReadOnce) {
  EXPECT_TRUE(checks_.check(*file_, "key", stored_));
  stop_.set();  // another read would be refused
  EXPECT_TRUE(checks_.check(*file_, "key", stored_));
  stored_.record_offset -= 1;
  EXPECT_EQ(checks_.check(*file_, "key", stored_).error().code(), ErrorCode::kCancelled);
  stored_.record_crc.reset();
  EXPECT_TRUE(checks_.check(*file_, "key", stored_));
}

}  // namespace
}  // namespace cairn::data_file
