#include "staging/source_samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "core/byte_units.h"
#include "staging/snapshot_copy.h"

namespace cairn::staging {
namespace {

// One-dimensional tensors of bytes, placed one after another in an arena.
class SamplesOfTensors : public testing::Test {
 protected:
  void add(std::uint64_t bytes, std::string key) {
    memories_.emplace_back(bytes, std::byte{1});
    keys_.push_back(std::move(key));
  }
  std::vector<CopyItem> items() {
    views_.clear();
    views_.reserve(memories_.size());
    std::vector<CopyItem> items;
    arena_bytes_ = 0;
    for (std::size_t i = 0; i < memories_.size(); ++i) {
      const auto size = static_cast<std::int64_t>(memories_[i].size());
      views_.push_back(TensorView::contiguous(memories_[i].data(), DType::kUInt8, {size}));
      items.push_back({&views_.back(), {}, arena_bytes_, keys_[i]});
      arena_bytes_ += (memories_[i].size() + 127) / 64 * 64;
    }
    return items;
  }
  Result<void> copy(const std::vector<CopyItem>& items, const SourceSamples& samples, std::size_t threads = 1) {
    arena_ = Arena::make().value();
    EXPECT_TRUE(arena_->fit(arena_bytes_));
    return copy_into(*arena_, items, {.arena_bytes = arena_bytes_, .thread_count = threads, .samples = &samples});
  }

  std::vector<std::vector<std::byte>> memories_;
  std::vector<std::string> keys_;
  std::vector<TensorView> views_;
  std::uint64_t arena_bytes_ = 0;
  std::shared_ptr<Arena> arena_;
};

TEST_F(SamplesOfTensors, AgreeWithAnUnchangedSource) {
  for (const std::uint64_t bytes : {0UL, 1UL, 31UL, 33UL, 100UL, kMiB - 1, kMiB, kMiB + 1, 9 * kMiB + 5})
    add(bytes, "t");
  auto all = items();
  all.push_back({nullptr, "ready bytes", arena_bytes_ - 64});
  for (const std::size_t threads : {1U, 4U}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Result<void> copied = copy(all, SourceSamples::take(all, seed), threads);
      ASSERT_TRUE(copied) << copied.error().what();
      EXPECT_EQ(arena_->staged(), Arena::kAll);
    }
  }
}

TEST_F(SamplesOfTensors, TakenOfEachTensorAndMiB) {
  add(1, "small");
  EXPECT_EQ(SourceSamples::take(items(), 0).count(), 1U);
  add(10 * kMiB, "large");
  EXPECT_EQ(SourceSamples::take(items(), 0).count(), 1U + 10U + 1U);
  add(0, "empty");
  EXPECT_EQ(SourceSamples::take(items(), 0).count(), 12U);
}

TEST_F(SamplesOfTensors, NameTheKeyOfAWrittenTensor) {
  add(5, "tiny");
  add(3000, "small");
  add(9 * kMiB + 5, "large");
  for (std::size_t written = 0; written < 3; ++written) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const auto all = items();
      const SourceSamples samples = SourceSamples::take(all, seed);
      std::fill(memories_[written].begin(), memories_[written].end(), memories_[written][0] ^ std::byte{1});
      const Result<void> copied = copy(all, samples, 2);
      ASSERT_FALSE(copied);
      EXPECT_EQ(copied.error().code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(copied.error().key(), keys_[written]);
      EXPECT_LT(arena_->staged(), Arena::kAll) << "the writer would take the copy for complete";
    }
  }
}

// A part of the tensor is copied before the write, the rest after the write, for every MiB at which the write may
// arrive.
TEST_F(SamplesOfTensors, NoticeAWriteDuringTheCopy) {
  add(6 * kMiB, "large");
  for (std::uint64_t first = 0; first < 6; ++first) {
    const auto all = items();
    const SourceSamples samples = SourceSamples::take(all, first);
    std::fill(memories_[0].begin() + static_cast<std::ptrdiff_t>(first * kMiB), memories_[0].end(), std::byte{2});
    EXPECT_FALSE(copy(all, samples));
    std::fill(memories_[0].begin(), memories_[0].end(), std::byte{1});
  }
}

TEST_F(SamplesOfTensors, NameAllKeysThatWereWrittenTo) {
  for (int i = 0; i < 40; ++i) add(100, "key" + std::to_string(i));
  const auto all = items();
  const SourceSamples samples = SourceSamples::take(all, 1);
  for (std::size_t i = 0; i < 40; i += 20) memories_[i].assign(100, std::byte{2});
  const std::string text = copy(all, samples).error().what();
  EXPECT_NE(text.find("'key0', 'key20';"), std::string::npos) << text;
  for (auto& memory : memories_) memory.assign(100, std::byte{2});
  const std::string longer = copy(all, samples).error().what();
  EXPECT_NE(longer.find(" and 8 more;"), std::string::npos) << longer;
}

// The trainer writes to the first tensor as soon as the staged mark covers the tensor; later tensors are still being
// copied.
TEST_F(SamplesOfTensors, IgnoreAWriteAfterTheCopy) {
  for (int i = 0; i < 8; ++i) add(4 * kMiB, "t");
  const auto all = items();
  const SourceSamples samples = SourceSamples::take(all, 1);
  arena_ = Arena::make().value();
  ASSERT_TRUE(arena_->fit(arena_bytes_));
  std::jthread trainer([&] {
    while (arena_->staged() < all[1].arena_offset) std::this_thread::yield();
    std::fill(memories_[0].begin(), memories_[0].end(), std::byte{2});
  });
  const Result<void> copied =
      copy_into(*arena_, all, {.arena_bytes = arena_bytes_, .thread_count = 2, .samples = &samples});
  EXPECT_TRUE(copied) << copied.error().what();
  EXPECT_EQ(arena_->bytes()[0], std::byte{1});
}

TEST(SourceSamples, CompareStridedTensorsAndNaNs) {
  std::vector<float> memory(3000 * 500, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < memory.size(); i += 3) memory[i] = static_cast<float>(i);
  const std::vector<float> first = memory;
  std::vector<float> negated(memory.size());
  std::transform(memory.begin(), memory.end(), negated.begin(), std::negate());  // changes the sign of a NaN too
  const TensorView transposed{memory.data(), DType::kFloat32, {500, 3000}, {1, 500}};
  const TensorView repeated{memory.data(), DType::kFloat32, {4, 100}, {0, 1}};
  const std::vector<CopyItem> items{{&transposed, {}, 0, "transposed"}, {&repeated, {}, 6'000'000, "repeated"}};
  const auto arena = Arena::make().value();
  ASSERT_TRUE(arena->fit(6'002'000));
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const SourceSamples samples = SourceSamples::take(items, seed);
    const CopyOptions options{.arena_bytes = 6'002'000, .thread_count = 2, .samples = &samples};
    ASSERT_TRUE(copy_into(*arena, items, options));
    std::memcpy(memory.data(), (seed % 2 == 0 ? negated : first).data(), memory.size() * sizeof(float));
    EXPECT_EQ(copy_into(*arena, items, options).error().key(), "repeated");  // the first key in alphabetical order
  }
}

TEST(SnapshotCopy, NothingStagedUntilConfirmed) {
  const std::vector<float> memory(100, 1.0F);
  const TensorView view = TensorView::contiguous(memory.data(), DType::kFloat32, {100});
  const std::vector<CopyItem> items{{&view, {}, 0, "t"}};
  const auto arena = Arena::make().value();
  ASSERT_TRUE(arena->fit(400));
  CopyOptions options{.arena_bytes = 400};
  options.confirm = [&]() -> Result<void> {
    EXPECT_LT(arena->staged(), Arena::kAll);
    return Error(ErrorCode::kInvalidArgument, "no");
  };
  EXPECT_FALSE(copy_into(*arena, items, options));
  EXPECT_LT(arena->staged(), Arena::kAll);
}

}  // namespace
}  // namespace cairn::staging
