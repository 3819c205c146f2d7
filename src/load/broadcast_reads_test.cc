// Reads that the ranks of a job broadcast. The ranks are threads of the test, each with a disk and a page cache of its
// own, as on a host of its own.
#include "load/broadcast_reads.h"

#include <cairn/collectives.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/byte_units.h"
#include "core/checksum.h"
#include "storage/testing/cached_storage.h"
#include "storage/testing/model_storage.h"

namespace cairn::checkpointer {
namespace {

constexpr std::size_t kFileBytes = 40 * kMiB + 12345;
constexpr std::uint64_t kBlockBytes = kChecksumBlockBytes;
// Of each window, for the pages at both ends.
constexpr std::uint64_t kMarginBytes = 256 * kKiB;

std::string pattern() {
  std::string bytes(kFileBytes, '\0');
  std::uint32_t state = 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

// A rank with a disk of its own.
class Rank {
 public:
  Rank(std::unique_ptr<Collectives> collectives, const std::string& content)
      : collectives_(std::move(collectives)), cached_(disk_, pages_) {
    EXPECT_TRUE(disk_.create_whole("file", content, Durability::kBuffered));
    file_ = data_file::DataFile::open(cached_, "file", false, nullptr, std::nullopt).value();
  }

  // Wants bytes of the file, in rows of `row_bytes`, of which the target gets the first `wanted` of each row.
  void want_rows(std::uint64_t offset, std::int64_t rows, std::int64_t row_bytes, std::int64_t wanted,
                 ReadGroup group) {
    StoredTensor stored;
    stored.dtype = DType::kUInt8;
    stored.sizes = {rows, row_bytes};
    stored.strides = {row_bytes, 1};
    stored.record_offset = offset;
    stored.record_bytes = static_cast<std::uint64_t>(rows * row_bytes);
    stored.block_bytes = kBlockBytes;
    const std::string_view record = std::string_view(right()).substr(offset, stored.record_bytes);
    crcs_.push_back(std::make_unique<std::vector<std::uint32_t>>());
    for (std::uint64_t begin = 0; begin < record.size(); begin += kBlockBytes) {
      crcs_.back()->push_back(crc32(std::as_bytes(std::span(record.substr(begin, kBlockBytes)))));
    }
    stored.block_crcs = *crcs_.back();
    targets_.push_back(std::make_unique<std::vector<std::byte>>(static_cast<std::size_t>(rows * wanted)));
    places_.push_back({offset, static_cast<std::size_t>(row_bytes), static_cast<std::size_t>(wanted)});
    const auto view = TensorView::contiguous(targets_.back()->data(), DType::kUInt8, {rows, wanted});
    reads_.push_back({*file_, "key", stored, {0, 0}, view});
    groups_.push_back(group);
  }
  void want_whole(std::uint64_t offset, std::uint64_t bytes, ReadGroup group = ReadGroup::kLargeTensors) {
    want_rows(offset, 1, static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(bytes), group);
  }

  // Steps 1 to 3. `host_number`: of all groups; 0: a host of its own.
  void prepare(std::uint64_t host_number = 0, const std::function<bool()>& interrupted = {}) {
    BroadcastOptions options;
    options.interrupted = interrupted;
    broadcast_.take(reads_, groups_, options);
    const auto seen = collectives_->all_gather(SharedReads::encode(broadcast_.numbers())).value();
    std::vector<BroadcastReads::Numbers> numbers;
    for (const std::string& message : seen) numbers.push_back(SharedReads::decode(message));
    const SharedReads::Numbers host{host_number, host_number, host_number};
    const std::vector<SharedReads::Numbers> hosts(numbers.size(), host);
    ASSERT_TRUE(broadcast_.choose(numbers, hosts, *collectives_, reads_, groups_));
  }
  BroadcastOutcome run() { return broadcast_.run(); }
  void leave() { collectives_.reset(); }

  // Whether each target has the bytes of the file.
  bool is_filled() const {
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      const auto& [offset, row_bytes, wanted] = places_[i];
      for (std::size_t row = 0; row * wanted < targets_[i]->size(); ++row) {
        if (std::memcmp(targets_[i]->data() + row * wanted, right().data() + offset + row * row_bytes, wanted) != 0) {
          return false;
        }
      }
    }
    return true;
  }
  std::size_t reads_left() const { return reads_.size(); }
  std::uint64_t bytes_from_storage() const { return pages_.bytes_from_storage(); }
  std::size_t number() const { return collectives_->rank(); }

  static const std::string& right() {
    static const std::string bytes = pattern();
    return bytes;
  }

 private:
  struct Place {
    std::uint64_t offset;
    std::size_t row_bytes;
    std::size_t wanted;
  };
  std::unique_ptr<Collectives> collectives_;
  storage::ModelStorage disk_;
  storage::CachedPages pages_;
  storage::CachedStorage cached_;
  std::unique_ptr<data_file::DataFile> file_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> targets_;
  std::vector<std::unique_ptr<std::vector<std::uint32_t>>> crcs_;
  std::vector<Place> places_;
  std::vector<data_file::TensorRead> reads_;
  std::vector<ReadGroup> groups_;
  BroadcastReads broadcast_;
};

// Runs `work` for each rank, in a thread of its own. `contents`: of the file, by rank; the last for the ranks beyond.
void as_job(std::size_t count, const std::function<void(Rank&)>& work,
            const std::vector<std::string>& contents = {Rank::right()}) {
  std::vector<std::unique_ptr<Collectives>> group = make_local_group(count, std::chrono::seconds(60));
  std::vector<std::jthread> threads;
  for (std::size_t number = 0; number < count; ++number) {
    const std::string& content = contents[std::min(number, contents.size() - 1)];
    threads.emplace_back([&work, &content, own = std::move(group[number])]() mutable {
      Rank rank(std::move(own), content);
      work(rank);
    });
  }
}

class BytesOfJob {
 public:
  void add(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes_ += bytes;
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::mutex mutex_;
  std::uint64_t bytes_ = 0;
};

TEST(BroadcastReads, ReadEachByteOnceForAllRanks) {
  for (const std::size_t count : {2u, 3u, 5u}) {
    BytesOfJob read;
    as_job(count, [&read](Rank& rank) {
      rank.want_whole(8 * kMiB, 20 * kMiB + 77);
      rank.want_whole(1000, 5 * kMiB);
      rank.want_whole(39 * kMiB, 5000, ReadGroup::kSmallTensors);
      rank.prepare();
      EXPECT_EQ(rank.reads_left(), 0u);
      const BroadcastOutcome outcome = rank.run();
      EXPECT_TRUE(outcome.is_well());
      EXPECT_TRUE(rank.is_filled());
      read.add(outcome.bytes_read);
      EXPECT_LE(rank.bytes_from_storage(), outcome.bytes_read + kMarginBytes);
    });
    EXPECT_GE(read.bytes(), 25 * kMiB);
    EXPECT_LE(read.bytes(), 25 * kMiB + kMarginBytes);
  }
}

TEST(BroadcastReads, PartsOfRowsAndSmallTensors) {
  as_job(3, [](Rank& rank) {
    rank.want_rows(0, 500, 20000, 1200, ReadGroup::kLargeTensors);
    for (std::uint64_t i = 0; i < 300; ++i) rank.want_whole(20 * kMiB + i * 700, 640, ReadGroup::kSmallTensors);
    rank.prepare();
    EXPECT_TRUE(rank.run().is_well());
    EXPECT_TRUE(rank.is_filled());
  });
}

TEST(BroadcastReads, MoreRanksThanWindows) {
  as_job(7, [](Rank& rank) {
    rank.want_whole(123, 4567, ReadGroup::kSmallTensors);
    rank.prepare();
    EXPECT_TRUE(rank.run().is_well());
    EXPECT_TRUE(rank.is_filled());
  });
}

TEST(BroadcastReads, ShardsGoToTheirRanksAlone) {
  BytesOfJob read;
  as_job(4, [&read](Rank& rank) {
    rank.want_whole(36 * kMiB, 70000);
    rank.want_whole(rank.number() % 2 * 18 * kMiB, 18 * kMiB, ReadGroup::kShards);
    rank.prepare();
    const BroadcastOutcome outcome = rank.run();
    EXPECT_TRUE(outcome.is_well());
    EXPECT_TRUE(rank.is_filled());
    read.add(outcome.bytes_read);
  });
  EXPECT_LE(read.bytes(), 36 * kMiB + 70000 + kMarginBytes);
}

TEST(BroadcastReads, SmallShardsAreNotBroadcast) {
  as_job(4, [](Rank& rank) {
    rank.want_whole(rank.number() % 2 * 2 * kMiB, 2 * kMiB, ReadGroup::kShards);
    rank.prepare();
    EXPECT_EQ(rank.reads_left(), 1u);
  });
}

TEST(BroadcastReads, UnlikeReadsAreNotBroadcast) {
  as_job(2, [](Rank& rank) {
    rank.want_whole(rank.number(), 20 * kMiB);
    rank.prepare();
    EXPECT_EQ(rank.reads_left(), 1u);
    EXPECT_TRUE(rank.run().is_well());
  });
}

TEST(BroadcastReads, RanksOfOneHostBroadcastNothing) {
  as_job(2, [](Rank& rank) {
    rank.want_whole(0, 20 * kMiB);
    rank.prepare(7);
    EXPECT_EQ(rank.reads_left(), 1u);
  });
}

TEST(BroadcastReads, DamagedByteFailsOnEveryRank) {
  std::string damaged = Rank::right();
  damaged[5 * kMiB] = static_cast<char>(damaged[5 * kMiB] ^ 1);  // in window 1, which belongs to rank 1
  std::atomic<int> failures = 0;
  const auto load = [&failures](Rank& rank) {
    rank.want_whole(0, 40 * kMiB);
    rank.prepare();
    const BroadcastOutcome outcome = rank.run();
    EXPECT_FALSE(outcome.is_well());
    if (!outcome.failure) return;  // stopped by a rank that found the damage first
    ++failures;
    EXPECT_EQ(outcome.failure->code(), ErrorCode::kCorrupt);
    EXPECT_EQ(outcome.failure->offset(), 5 * kMiB);
    const bool names_reader = std::string(outcome.failure->what()).find("member 1") != std::string::npos;
    EXPECT_EQ(names_reader, rank.number() != 1) << outcome.failure->what();
  };
  as_job(3, load, {Rank::right(), damaged, Rank::right()});
  EXPECT_GE(failures, 1);
}

TEST(BroadcastReads, FailedReadStopsAllRanks) {
  as_job(3,
         [](Rank& rank) {
           rank.want_whole(0, 30 * kMiB);
           rank.want_whole(31 * kMiB, 6000, ReadGroup::kSmallTensors);
           rank.prepare();
           const BroadcastOutcome outcome = rank.run();
           EXPECT_EQ(outcome.failure.has_value(), rank.number() == 2);
           EXPECT_FALSE(outcome.is_well());
           EXPECT_FALSE(outcome.lost_transport);
         },
         {Rank::right(), Rank::right(), Rank::right().substr(0, 20 * kMiB)});
}

TEST(BroadcastReads, InterruptedRankStopsAllRanks) {
  as_job(2, [](Rank& rank) {
    rank.want_whole(0, 40 * kMiB);
    int calls = 0;
    const bool interrupts = rank.number() == 0;
    rank.prepare(0, [&calls, interrupts] { return interrupts && ++calls > 3; });
    const BroadcastOutcome outcome = rank.run();
    ASSERT_EQ(outcome.failure.has_value(), interrupts);
    EXPECT_EQ(outcome.is_stopped, !interrupts);
    if (interrupts) EXPECT_EQ(outcome.failure->code(), ErrorCode::kCancelled);
  });
}

TEST(BroadcastReads, LostRankFailsTheOthers) {
  as_job(3, [](Rank& rank) {
    rank.want_whole(0, 40 * kMiB);
    rank.prepare();
    if (rank.number() == 1) return rank.leave();
    const BroadcastOutcome outcome = rank.run();
    ASSERT_TRUE(outcome.failure);
    EXPECT_EQ(outcome.failure->code(), ErrorCode::kUnavailable);
    EXPECT_TRUE(outcome.lost_transport);
  });
}

}  // namespace
}  // namespace cairn::checkpointer
