#include "data_file/read_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/byte_units.h"
#include "core/checksum.h"
#include "storage/testing/model_storage.h"

namespace cairn::data_file {
namespace {

// Two files of no bytes: a schedule reads none.
class ReadPieces : public testing::Test {
 protected:
  ReadPieces() {
    for (const std::string name : {"a", "b"}) {
      EXPECT_TRUE(disk_.create_whole(name, "", Durability::kBuffered));
      files_.push_back(DataFile::open(disk_, name, false, nullptr, std::nullopt).value());
    }
  }

  // A whole row-major tensor of float32.
  static StoredTensor floats(const Extents& sizes, std::uint64_t record_offset = 0) {
    StoredTensor stored;
    stored.sizes = sizes;
    stored.strides = row_major_strides(sizes);
    stored.record_offset = record_offset;
    stored.record_bytes = static_cast<std::uint64_t>(element_count(sizes).value()) * sizeof(float);
    return stored;
  }
  // The same with a checksum for each block.
  StoredTensor checked_floats(const Extents& sizes, std::uint64_t record_offset = 0) {
    StoredTensor stored = floats(sizes, record_offset);
    crcs_.resize(std::max<std::size_t>(crcs_.size(), checksum_block_count(stored.record_bytes)));
    stored.block_crcs = std::span(crcs_).first(checksum_block_count(stored.record_bytes));
    return stored;
  }
  void read(const StoredTensor& stored, const Extents& offsets, const Extents& sizes, std::size_t file = 0) {
    reads_.emplace_back(*files_[file], "key", stored, offsets,
                        TensorView::contiguous(static_cast<void*>(nullptr), stored.dtype, sizes));
  }
  ReadSchedule schedule(Verify verify = Verify::kNeeded) const { return schedule_reads(reads_, verify); }

  using Range = std::pair<std::uint64_t, std::uint64_t>;
  std::vector<Range> pieces(Verify verify = Verify::kNeeded) const {
    std::vector<Range> ranges;
    for (const ReadPiece& piece : schedule(verify).pieces) ranges.emplace_back(piece.begin, piece.end);
    return ranges;
  }
  std::vector<Range> batches() const {
    std::vector<Range> ranges;
    for (const ReadBatch& batch : schedule().batches) ranges.emplace_back(batch.begin, batch.end);
    return ranges;
  }

  storage::ModelStorage disk_;
  std::vector<std::unique_ptr<DataFile>> files_;
  std::vector<std::uint32_t> crcs_;
  std::vector<TensorRead> reads_;
};

TEST_F(ReadPieces, RowsAreTheirBytesInTheRecord) {
  read(floats({100, 100}, 1000), {10, 0}, {10, 100});
  EXPECT_EQ(pieces(), (std::vector<Range>{{4000, 8000}}));
  EXPECT_EQ(batches(), (std::vector<Range>{{5000, 9000}}));
}

TEST_F(ReadPieces, NoneForABoxWithoutElements) {
  read(floats({100, 100}), {10, 0}, {0, 100});
  read(floats({0}), {0}, {0});
  EXPECT_TRUE(pieces(Verify::kFull).empty());
  EXPECT_TRUE(schedule().batches.empty());
}

TEST_F(ReadPieces, CheckedReadsTakeWholeBlocks) {
  const StoredTensor stored = checked_floats({40'000});  // 160,000 bytes: two blocks and a rest
  read(stored, {20'000}, {1});
  EXPECT_EQ(pieces(), (std::vector<Range>{{64 * kKiB, 128 * kKiB}}));
  reads_.clear();
  read(stored, {39'999}, {1});
  EXPECT_EQ(pieces(), (std::vector<Range>{{128 * kKiB, 160'000}}));
  reads_.clear();
  read(stored, {16'383}, {2});  // the last element of a block and the first of the next
  EXPECT_EQ(pieces(), (std::vector<Range>{{0, 128 * kKiB}}));
}

TEST_F(ReadPieces, ColumnsSpanSmallGaps) {
  read(floats({100, 100}), {0, 7}, {100, 3});
  EXPECT_EQ(pieces(), (std::vector<Range>{{28, 99 * 400 + 40}}));
}

TEST_F(ReadPieces, ColumnsLeaveOutLargeGaps) {
  read(floats({3, 16 * 1024}), {0, 5}, {3, 2});
  EXPECT_EQ(pieces(),
            (std::vector<Range>{{20, 28}, {64 * kKiB + 20, 64 * kKiB + 28}, {128 * kKiB + 20, 128 * kKiB + 28}}));
}

TEST_F(ReadPieces, CutBetweenBlocksAfterTwoMiB) {
  for (const bool checked : {false, true}) {
    reads_.clear();
    const Extents sizes = {5 * 1024 * 256};  // 5 MiB
    read(checked ? checked_floats(sizes) : floats(sizes), {25}, {5 * 1024 * 256 - 25});
    const std::uint64_t begin = checked ? 0 : 100;
    EXPECT_EQ(pieces(), (std::vector<Range>{{begin, 2 * kMiB}, {2 * kMiB, 4 * kMiB}, {4 * kMiB, 5 * kMiB}}));
  }
}

TEST_F(ReadPieces, FullCheckTakesTheWholeRecord) {
  StoredTensor stored = floats({100'000});
  stored.record_crc = 7;
  stored.record_bytes += 100;  // of a storage that is larger than its tensor
  read(stored, {50}, {1});
  EXPECT_EQ(pieces(Verify::kFull), (std::vector<Range>{{0, 400'100}}));
  EXPECT_EQ(pieces(Verify::kNeeded), (std::vector<Range>{{200, 204}}));
}

TEST_F(ReadPieces, NeighboursAreFetchedTogether) {
  read(floats({10}, 70'000), {0}, {10});
  read(floats({10}, 1'000), {0}, {10});
  read(floats({10}, 2'000), {0}, {10});
  const ReadSchedule scheduled = schedule();
  EXPECT_EQ(batches(), (std::vector<Range>{{1'000, 2'040}, {70'000, 70'040}}));
  EXPECT_EQ(scheduled.batches[0].first_piece, 0u);
  EXPECT_EQ(scheduled.batches[0].piece_count, 2u);
  EXPECT_EQ(scheduled.pieces[0].read, 1u);
  EXPECT_EQ(scheduled.pieces[1].read, 2u);
  EXPECT_EQ(scheduled.pieces[2].read, 0u);
}

TEST_F(ReadPieces, TwoFilesAreFetchedApart) {
  read(floats({10}, 0), {0}, {10}, 0);
  read(floats({10}, 40), {0}, {10}, 1);
  const ReadSchedule scheduled = schedule();
  ASSERT_EQ(scheduled.batches.size(), 2u);
  EXPECT_NE(scheduled.batches[0].file, scheduled.batches[1].file);
}

TEST_F(ReadPieces, BatchesEndAfterTwoMiB) {
  for (std::uint64_t i = 0; i < 5; ++i) read(floats({256 * 1024}, i * kMiB), {0}, {256 * 1024});
  EXPECT_EQ(batches(), (std::vector<Range>{{0, 2 * kMiB}, {2 * kMiB, 4 * kMiB}, {4 * kMiB, 5 * kMiB}}));
}

TEST_F(ReadPieces, PartsOfARangeMakeOneBatch) {
  const StoredTensor stored = checked_floats({10 * 1024 * 256});  // 10 MiB
  read(stored, {25}, {512 * 1024});
  EXPECT_EQ(pieces(), (std::vector<Range>{{0, 2 * kMiB}, {2 * kMiB, 2 * kMiB + 64 * kKiB}}));
  EXPECT_EQ(batches(), (std::vector<Range>{{0, 2 * kMiB + 64 * kKiB}}));
}

TEST_F(ReadPieces, WholeTensorTakesItsOwnBatches) {
  const std::int64_t elements = 512 * 1024 + 16 * 1024;  // 2 MiB and 64 KiB
  read(checked_floats({elements}), {0}, {elements});
  EXPECT_EQ(batches(), (std::vector<Range>{{0, 2 * kMiB}, {2 * kMiB, 2 * kMiB + 64 * kKiB}}));
}

TEST_F(ReadPieces, ConvertedReadsShareNoBuffer) {
  StoredTensor swapped = floats({10}, 1'000);
  swapped.big_endian = true;
  for (const bool swapped_first : {false, true}) {
    SCOPED_TRACE(swapped_first);
    reads_.clear();
    if (swapped_first) read(swapped, {0}, {10});
    read(floats({10}, 1'000), {0}, {10});
    if (!swapped_first) read(swapped, {0}, {10});
    for (const ReadBatch& batch : schedule().batches) EXPECT_EQ(batch.piece_count, 1u);
    EXPECT_EQ(schedule().batches.size(), 2u);
  }
}

TEST_F(ReadPieces, SharersBeginAtUnequalBatches) {
  constexpr std::uint32_t kSharerCount = 4;
  constexpr std::uint64_t kBatchCount = 140;  // two windows of 64 batches, and a rest
  for (std::uint64_t i = 0; i < kBatchCount; ++i) read(floats({512 * 1024}, i * 2 * kMiB), {0}, {512 * 1024});
  const std::vector<Range> in_order = batches();
  ASSERT_EQ(in_order.size(), kBatchCount);
  for (std::uint32_t place = 0; place < kSharerCount; ++place) {
    for (TensorRead& read : reads_) read.set_sharers({kSharerCount, place});
    const std::vector<Range> turned = batches();
    ASSERT_EQ(turned.size(), kBatchCount);
    for (const std::uint64_t window : {std::uint64_t{0}, std::uint64_t{64}}) {
      EXPECT_EQ(turned[window], in_order[window + place * 16]);
      EXPECT_TRUE(std::is_permutation(in_order.begin() + static_cast<std::ptrdiff_t>(window),
                                      in_order.begin() + static_cast<std::ptrdiff_t>(window) + 64,
                                      turned.begin() + static_cast<std::ptrdiff_t>(window)));
    }
    EXPECT_TRUE(std::is_permutation(in_order.begin(), in_order.end(), turned.begin()));
  }
}

TEST_F(ReadPieces, SharedReadsComeFirst) {
  for (std::uint64_t i = 0; i < 4; ++i) read(floats({512 * 1024}, i * 4 * kMiB), {0}, {512 * 1024});
  reads_[1].set_sharers({2, 0});
  reads_[3].set_sharers({3, 0});
  EXPECT_EQ(batches(),
            (std::vector<Range>{{12 * kMiB, 14 * kMiB}, {4 * kMiB, 6 * kMiB}, {0, 2 * kMiB}, {8 * kMiB, 10 * kMiB}}));
}

// The addresses of files differ between processes: of two reads into the same memory, the same one must come last.
TEST_F(ReadPieces, OrderedByTheNamesOfTheFiles) {
  for (int i = 0; i < 8; ++i) {
    for (const std::string name : {"b", "a"}) {
      files_.push_back(DataFile::open(disk_, name, false, nullptr, std::nullopt).value());
    }
  }
  const auto is_first = [](const auto& file) { return file->name() == "a"; };
  const auto names = std::partition(files_.begin(), files_.end(), is_first);
  std::sort(files_.begin(), names, std::greater<>());
  std::sort(names, files_.end());
  const auto second = static_cast<std::size_t>(names - files_.begin());
  ASSERT_GT(files_[0], files_[second]) << "an order by addresses must fail";
  for (const std::size_t file : {std::size_t{0}, second}) read(floats({10}), {0}, {10}, file);
  for (const std::uint32_t sharers : {1U, 2U}) {
    for (TensorRead& read : reads_) read.set_sharers({sharers, 0});
    const ReadSchedule scheduled = schedule();
    ASSERT_EQ(scheduled.batches.size(), 2u);
    EXPECT_EQ(scheduled.batches[0].file->name(), "a");
  }
}

TEST_F(ReadPieces, CommonTargetsKeepTheOrder) {
  for (std::uint64_t i = 0; i < 4; ++i) read(floats({512 * 1024}, i * 4 * kMiB), {0}, {512 * 1024});
  for (TensorRead& read : reads_) read.set_sharers({2, 1});
  reads_[0].keep_order();
  reads_[1].keep_order();
  EXPECT_EQ(batches(),
            (std::vector<Range>{{12 * kMiB, 14 * kMiB}, {8 * kMiB, 10 * kMiB}, {0, 2 * kMiB}, {4 * kMiB, 6 * kMiB}}));
}

TEST_F(ReadPieces, SharedAndOwnMakeASharedBatch) {
  read(floats({10}, 1'000), {0}, {10});
  read(floats({10}, 2'000), {0}, {10});
  reads_[1].set_sharers({2, 1});
  const ReadSchedule scheduled = schedule();
  ASSERT_EQ(scheduled.batches.size(), 1u);
  EXPECT_EQ(scheduled.batches[0].sharers, (Sharers{2, 1}));
}

// Of random boxes of one tensor: the pieces of a read hold each of its elements, do not overlap, and lie in a batch.
TEST_F(ReadPieces, HoldEveryElementOnce) {
  constexpr unsigned kSeed = 11;
  std::mt19937 random(kSeed);
  const Extents sizes = {40, 30, 700};
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(bound));
  };
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(testing::Message() << "seed=" << kSeed << " round=" << round);
    Extents offsets(3, 0), box(3, 0);
    for (std::size_t d = 0; d < 3; ++d) {
      offsets[d] = below(sizes[d]);
      box[d] = 1 + below(sizes[d] - offsets[d]);
    }
    reads_.clear();
    read(round % 2 == 0 ? floats(sizes, 64) : checked_floats(sizes, 64), offsets, box);
    const ReadSchedule scheduled = schedule();
    const std::vector<Range> ranges = pieces();
    for (std::size_t i = 1; i < ranges.size(); ++i) ASSERT_LE(ranges[i - 1].second, ranges[i].first);
    const Extents strides = row_major_strides(sizes);
    for (std::int64_t plane = offsets[0]; plane < offsets[0] + box[0]; ++plane) {
      for (std::int64_t row = offsets[1]; row < offsets[1] + box[1]; ++row) {
        const auto begin =
            static_cast<std::uint64_t>(plane * strides[0] + row * strides[1] + offsets[2]) * sizeof(float);
        const std::uint64_t end = begin + static_cast<std::uint64_t>(box[2]) * sizeof(float);
        const auto holds = [&](const Range& range) { return range.first <= begin && end <= range.second; };
        ASSERT_EQ(std::count_if(ranges.begin(), ranges.end(), holds), 1);
      }
    }
    std::size_t in_batches = 0;
    for (const ReadBatch& batch : scheduled.batches) {
      for (std::size_t i = 0; i < batch.piece_count; ++i) {
        const ReadPiece& piece = scheduled.pieces[batch.first_piece + i];
        ASSERT_GE(64 + piece.begin, batch.begin);
        ASSERT_LE(64 + piece.end, batch.end);
      }
      in_batches += batch.piece_count;
    }
    ASSERT_EQ(in_batches, ranges.size());
  }
}

}  // namespace
}  // namespace cairn::data_file
