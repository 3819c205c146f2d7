// Loads by several ranks of one host, which are threads of the test: the bytes that the storage reads for all ranks,
// and the bytes that the page cache holds afterwards.
#include <cairn/cairn.h>
#include <cairn/collectives.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/open_calls.h"
#include "core/byte_units.h"
#include "save/save_calls.h"
#include "storage/testing/cached_storage.h"
#include "storage/testing/model_storage.h"

namespace cairn {
namespace {

constexpr std::size_t kLayers = 3;
constexpr std::size_t kLayerBytes = 6 * kMiB;
constexpr std::size_t kLayersBytes = kLayers * kLayerBytes;
// Of a load, for metadata, trailers and the pages at the ends of ranges.
constexpr std::size_t kOtherBytesMax = kMiB;

std::string layer_key(std::size_t layer) { return "layers." + std::to_string(layer); }

class SharedLoad : public testing::Test {
 protected:
  // A checkpoint of layers; layer i has bytes of value i + 1.
  SharedLoad() {
    std::vector<std::vector<std::byte>> layers;
    StateDict state;
    for (std::size_t i = 0; i < kLayers; ++i) {
      layers.emplace_back(kLayerBytes, std::byte(i + 1));
      EXPECT_TRUE(state.add_tensor(layer_key(i), view_of(layers.back())));
    }
    SaveOptions options;
    options.checkpoint_id = "shared";
    EXPECT_TRUE(checkpointer::save_into({"shared", storage::ModelStorage::opening(disk_)}, state, options));
  }

  static TensorView view_of(std::vector<std::byte>& bytes) {
    return TensorView::contiguous(bytes.data(), DType::kUInt8, {static_cast<std::int64_t>(bytes.size())});
  }
  static bool all_are(const std::vector<std::byte>& bytes, std::byte value) {
    return std::all_of(bytes.begin(), bytes.end(), [&](std::byte it) { return it == value; });
  }

  // `work` of each rank gets an open checkpoint and the options of the load.
  void as_ranks_of_host(std::size_t count, const std::function<void(std::size_t, Checkpoint&, LoadOptions)>& work) {
    std::vector<std::unique_ptr<Collectives>> group = make_local_group(count, std::chrono::seconds(30));
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < count; ++rank) {
      threads.emplace_back([this, &work, rank, mine = std::move(group[rank])] {
        auto checkpoint = checkpointer::open_in(std::make_unique<storage::CachedStorage>(disk_, pages_));
        ASSERT_TRUE(checkpoint) << checkpoint.error().what();
        LoadOptions options;
        options.collectives = mine.get();
        work(rank, *checkpoint, options);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Loads layers from `first` on, and compares their bytes.
  static void load_layers(Checkpoint& checkpoint, const LoadOptions& options, std::size_t first = 0) {
    std::vector<std::vector<std::byte>> layers(kLayers, std::vector<std::byte>(kLayerBytes));
    StateDict state;
    for (std::size_t i = first; i < kLayers; ++i) ASSERT_TRUE(state.add_tensor(layer_key(i), view_of(layers[i])));
    const auto report = checkpoint.load(state, options);
    ASSERT_TRUE(report) << report.error().what();
    for (std::size_t i = first; i < kLayers; ++i) EXPECT_TRUE(all_are(layers[i], std::byte(i + 1))) << i;
  }

  storage::ModelStorage disk_;
  storage::CachedPages pages_;
};

TEST_F(SharedLoad, EqualKeysAreReadOnceUncached) {
  as_ranks_of_host(
      4, [](std::size_t, Checkpoint& checkpoint, const LoadOptions& options) { load_layers(checkpoint, options); });
  EXPECT_LT(pages_.bytes_from_storage(), kLayersBytes + kOtherBytesMax);
  EXPECT_LT(pages_.bytes(), kOtherBytesMax);
}

TEST_F(SharedLoad, CommonKeysAreReadOnce) {
  as_ranks_of_host(2, [](std::size_t rank, Checkpoint& checkpoint, const LoadOptions& options) {
    load_layers(checkpoint, options, rank);
  });
  EXPECT_LT(pages_.bytes_from_storage(), kLayersBytes + kOtherBytesMax);
  EXPECT_LT(pages_.bytes(), kOtherBytesMax);
}

TEST_F(SharedLoad, EachRankReadsItsOwnCheckpoint) {
  as_ranks_of_host(2, [](std::size_t, Checkpoint& checkpoint, LoadOptions options) {
    options.own_checkpoint = true;
    load_layers(checkpoint, options);
  });
  EXPECT_GE(pages_.bytes_from_storage(), 2 * kLayersBytes);
}

TEST_F(SharedLoad, BufferedLoadFillsThePageCache) {
  as_ranks_of_host(2, [](std::size_t, Checkpoint& checkpoint, LoadOptions options) {
    options.direct_io = false;
    load_layers(checkpoint, options);
  });
  EXPECT_LT(pages_.bytes_from_storage(), kLayersBytes + kOtherBytesMax);
  EXPECT_GE(pages_.bytes(), kLayersBytes);
}

TEST_F(SharedLoad, LeavesEarlierPagesInTheCache) {
  const std::string file = "__0_0.distcp";
  pages_.bring(file, 0, disk_.open(file, false).value()->size());
  const std::uint64_t before = pages_.bytes();
  as_ranks_of_host(
      2, [](std::size_t, Checkpoint& checkpoint, const LoadOptions& options) { load_layers(checkpoint, options); });
  EXPECT_GE(pages_.bytes(), before);
}

// Every rank reads the batches of a shared read in an order of its own. Targets that share memory must not get bytes of
// both keys.
TEST_F(SharedLoad, CommonMemoryGetsOneKeysBytes) {
  as_ranks_of_host(4, [](std::size_t rank, Checkpoint& checkpoint, const LoadOptions& options) {
    std::vector<std::byte> memory(kLayerBytes);
    StateDict state;
    for (std::size_t i = 0; i < 2; ++i) ASSERT_TRUE(state.add_tensor(layer_key(i), view_of(memory)));
    const auto report = checkpoint.load(state, options);
    ASSERT_TRUE(report) << report.error().what();
    EXPECT_TRUE(all_are(memory, std::byte{1}) || all_are(memory, std::byte{2})) << rank;
  });
}

}  // namespace
}  // namespace cairn
