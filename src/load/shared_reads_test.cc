#include "load/shared_reads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "storage/testing/model_storage.h"

namespace cairn::checkpointer {
namespace {

using Numbers = SharedReads::Numbers;

class SharedReadsOfRanks : public testing::Test {
 protected:
  SharedReadsOfRanks() {
    EXPECT_TRUE(disk_.create_whole("a", "", Durability::kBuffered));
    file_ = data_file::DataFile::open(disk_, "a", false, nullptr, std::nullopt).value();
  }

  // A read of a whole tensor of `bytes` bytes at `offset` of the file.
  data_file::TensorRead read(std::uint64_t offset, std::int64_t bytes) const {
    StoredTensor stored;
    stored.dtype = DType::kUInt8;
    stored.sizes = {bytes};
    stored.strides = {1};
    stored.record_offset = offset;
    stored.record_bytes = static_cast<std::uint64_t>(bytes);
    return {*file_, "key", stored, {0}, TensorView::contiguous(static_cast<void*>(nullptr), stored.dtype, {bytes})};
  }

  storage::ModelStorage disk_;
  std::unique_ptr<data_file::DataFile> file_;
};

TEST_F(SharedReadsOfRanks, GroupsAreBySizeAndCoverage) {
  EXPECT_EQ(group_of(read(0, 64 * 1024), true), ReadGroup::kLargeTensors);
  EXPECT_EQ(group_of(read(0, 64 * 1024 - 1), true), ReadGroup::kSmallTensors);
  EXPECT_EQ(group_of(read(0, 64 * 1024), false), ReadGroup::kShards);
}

TEST_F(SharedReadsOfRanks, NumbersDependOnHostAndRanges) {
  const std::vector<data_file::TensorRead> reads{read(0, 100), read(4096, 100)};
  const std::vector<ReadGroup> groups(2, ReadGroup::kShards);
  const Numbers numbers = SharedReads::numbers_of(reads, groups, "host");
  EXPECT_NE(numbers[2], 0u);
  EXPECT_EQ(numbers[0], 0u);
  EXPECT_EQ(SharedReads::numbers_of({reads[1], reads[0]}, groups, "host"), numbers);
  EXPECT_NE(SharedReads::numbers_of(reads, groups, "other"), numbers);
  EXPECT_NE(SharedReads::numbers_of({reads[0], read(4097, 100)}, groups, "host"), numbers);
  EXPECT_NE(SharedReads::numbers_of({reads[0], read(4096, 101)}, groups, "host"), numbers);
  EXPECT_EQ(SharedReads::numbers_of(reads, groups, ""), Numbers{});
}

TEST_F(SharedReadsOfRanks, SharersAreRanksOfEqualNumbers) {
  std::vector<data_file::TensorRead> reads{read(0, 100), read(4096, 100), read(8192, 100)};
  const std::vector<ReadGroup> groups{ReadGroup::kLargeTensors, ReadGroup::kSmallTensors, ReadGroup::kShards};
  const std::vector<Numbers> by_rank{{7, 1, 5}, {7, 2, 6}, {7, 3, 5}, {8, 4, 6}};
  SharedReads::mark(reads, groups, by_rank, {}, 2);
  EXPECT_EQ(reads[0].sharers(), (data_file::Sharers{3, 2}));
  EXPECT_EQ(reads[1].sharers(), (data_file::Sharers{1, 0}));
  EXPECT_EQ(reads[2].sharers(), (data_file::Sharers{2, 1}));
}

TEST_F(SharedReadsOfRanks, RanksOfUnlikeHostsShareNothing) {
  std::vector<data_file::TensorRead> reads{read(0, 100)};
  const std::vector<ReadGroup> groups{ReadGroup::kSmallTensors};
  std::vector<Numbers> by_rank;
  for (const char* host : {"one", "other", "one"}) by_rank.push_back(SharedReads::numbers_of(reads, groups, host));
  SharedReads::mark(reads, groups, by_rank, {}, 1);
  EXPECT_EQ(reads[0].sharers(), data_file::Sharers{});
  SharedReads::mark(reads, groups, by_rank, {}, 2);
  EXPECT_EQ(reads[0].sharers(), (data_file::Sharers{2, 1}));
}

TEST_F(SharedReadsOfRanks, FindsCommonReadsAmongOthers) {
  constexpr std::size_t kRanks = 4;
  constexpr std::int64_t kLarge = 100000;
  // A read of all ranks, a read of two ranks, and a read of the rank's own. Rank 3 is on another host.
  const auto reads_of = [this](std::size_t rank) {
    std::vector<data_file::TensorRead> reads{read(0, kLarge), read(4096 + rank / 2 * 4096, kLarge)};
    reads.push_back(read(1000000 + rank * 4096, kLarge));
    return reads;
  };
  const std::vector<ReadGroup> groups(3, ReadGroup::kLargeTensors);
  std::vector<Numbers> by_rank;
  std::vector<ReadFilter> filters;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const char* const host = rank == 3 ? "other" : "host";
    by_rank.push_back(SharedReads::numbers_of(reads_of(rank), groups, host));
    filters.push_back(SharedReads::filter_of(reads_of(rank), host, kRanks));
  }
  std::vector<data_file::TensorRead> reads = reads_of(1);
  SharedReads::mark(reads, groups, by_rank, filters, 1);
  EXPECT_EQ(reads[0].sharers(), (data_file::Sharers{3, 1}));
  EXPECT_EQ(reads[1].sharers(), (data_file::Sharers{2, 1}));
  EXPECT_EQ(reads[2].sharers(), data_file::Sharers{});
  reads = reads_of(3);
  SharedReads::mark(reads, groups, by_rank, filters, 3);
  EXPECT_EQ(reads[0].sharers(), data_file::Sharers{});
}

TEST_F(SharedReadsOfRanks, GroupsWithoutReadsAreNotShared) {
  std::vector<data_file::TensorRead> reads{read(0, 100)};
  SharedReads::mark(reads, {ReadGroup::kShards}, {Numbers{}, Numbers{}}, {}, 0);
  EXPECT_EQ(reads[0].sharers(), data_file::Sharers{});
}

TEST_F(SharedReadsOfRanks, NumbersSurviveTheEncoding) {
  const Numbers numbers{1, 0, ~std::uint64_t{0}};
  const std::string bytes = SharedReads::encode(numbers);
  EXPECT_EQ(bytes.size(), SharedReads::kEncodedBytes);
  EXPECT_EQ(SharedReads::decode(bytes + "more"), numbers);
  EXPECT_EQ(SharedReads::decode(bytes.substr(1)), Numbers{});
}

}  // namespace
}  // namespace cairn::checkpointer
